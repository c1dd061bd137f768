//! WRITEs that are copied straight into the memory of a peer on the same host.
//!
//! The peer's process has put a region into memory that this process has mapped as well, and lets
//! this QP write it as long as its [`Door`] is open. A direct WRITE is only ever a faster way to
//! carry out a request: whenever it is not certain that one is allowed, packets carry the request,
//! and the peer's responder decides.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::memory::{Buffer, Region, Segment};
use crate::types::{MrKey, Remote};

/// The last bytes of a message are stored after all others, because a program may wait for them.
const TAIL_BYTES: usize = 64;

/// Whether a peer may write a QP's memory directly: two words that both processes have mapped.
///
/// A writer counts itself in before it looks whether the door is open, and the owner looks for
/// writers after it has closed the door, so one of them sees the other.
#[derive(Clone, Debug)]
pub struct Door {
    words: Arc<Buffer>,
}

impl Door {
    /// Bytes of a door. The words are in cache lines of their own.
    pub const BYTES: usize = 128;
    const OPEN: usize = 0;
    const WRITERS: usize = 64;

    /// The door in this memory, which was zero at first: a closed door. `None` if it is too short.
    pub fn new(words: Arc<Buffer>) -> Option<Door> {
        (words.len() >= Door::BYTES && words.addr().is_multiple_of(64)).then_some(Door { words })
    }

    fn open_word(&self) -> &AtomicU64 {
        self.words.word(Door::OPEN)
    }

    fn writers(&self) -> &AtomicU64 {
        self.words.word(Door::WRITERS)
    }

    /// Lets the peer write.
    fn open(&self) {
        self.open_word().store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open_word().load(Ordering::SeqCst) == 1
    }

    /// From now on, no write begins. One may still be under way: see [`Door::is_empty`].
    pub fn close(&self) {
        self.open_word().store(0, Ordering::SeqCst);
    }

    /// Whether no write is under way. A peer that was killed, or stands still, in the middle of a
    /// write keeps this from ever becoming true.
    pub fn is_empty(&self) -> bool {
        self.writers().load(Ordering::SeqCst) == 0
    }

    /// Runs `write` if the door is open.
    fn pass(&self, write: impl FnOnce()) -> bool {
        self.writers().fetch_add(1, Ordering::SeqCst);
        let is_open = self.is_open();
        if is_open {
            write();
        }
        self.writers().fetch_sub(1, Ordering::SeqCst);
        is_open
    }
}

/// The door of a QP, open as long as this exists.
#[derive(Debug)]
pub(crate) struct OpenDoor(Door);

impl OpenDoor {
    pub(crate) fn new(door: Door) -> OpenDoor {
        door.open();
        OpenDoor(door)
    }
}

impl Drop for OpenDoor {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A region of the peer's that is mapped here.
#[derive(Debug)]
pub struct PeerRegion {
    rkey: u32,
    addr: u64,
    region: Region,
}

impl PeerRegion {
    /// The peer's region with this key, at this address for its peers; `here` is the same memory.
    pub fn new(rkey: MrKey, addr: u64, here: Region) -> PeerRegion {
        PeerRegion { rkey: rkey.0, addr, region: here }
    }

    /// Where `len` bytes at `remote` are in the region.
    fn find(&self, remote: Remote, len: usize) -> Option<usize> {
        let at = usize::try_from(remote.addr.checked_sub(self.addr)?).ok()?;
        let fits = at <= self.region.len() && len <= self.region.len() - at;
        (self.rkey == remote.rkey && fits).then_some(at)
    }
}

/// Memory of the peer that a QP may write directly.
#[derive(Debug)]
pub struct Reach {
    door: Door,
    regions: Vec<PeerRegion>,
    /// Bytes of the oldest request that have been copied.
    pub(crate) copied: Cell<u32>,
}

impl Reach {
    /// These regions, as long as the peer's door is open.
    pub fn new(door: Door, regions: Vec<PeerRegion>) -> Reach {
        Reach { door, regions, copied: Cell::new(0) }
    }

    /// Whether it includes these bytes.
    pub(crate) fn covers(&self, remote: Remote, len: u32) -> bool {
        self.find(remote, len).is_some()
    }

    fn find(&self, remote: Remote, len: u32) -> Option<(&Region, usize)> {
        self.regions.iter().find_map(|r| Some((&r.region, r.find(remote, len as usize)?)))
    }

    /// Copies the segments to `offset` of a message of `len` bytes for `remote`; `false` if that is
    /// not possible, and nothing is written.
    pub(crate) fn write(
        &self,
        (remote, len): (Remote, u32),
        offset: u32,
        segments: &[Segment],
    ) -> bool {
        let Some((region, at)) = self.find(remote, len) else { return false };
        let bytes: usize = segments.iter().map(Segment::len).sum();
        let ends = offset as usize + bytes == len as usize;
        let tail = if ends { bytes.min(TAIL_BYTES) } else { 0 };
        self.door.pass(|| {
            let start = at + offset as usize;
            if offset > 0 || bytes > tail {
                copy(region, start, segments, 0..bytes - tail);
                region.settle();
            }
            if tail > 0 {
                copy(region, start, segments, bytes - tail..bytes);
            }
        })
    }
}

/// Copies this part of the segments' bytes to where it belongs if the segments begin at `start`.
fn copy(region: &Region, start: usize, segments: &[Segment], part: core::ops::Range<usize>) {
    let mut from = 0;
    for segment in segments {
        let to = from + segment.len();
        let (first, last) = (part.start.clamp(from, to), part.end.clamp(from, to));
        if first < last
            && let Some((_, rest)) = segment.split_at((first - from) as u32)
            && let Some((piece, _)) = rest.split_at((last - first) as u32)
        {
            region.copy_in(start + first, &piece);
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(len: usize) -> (Reach, Arc<Buffer>, OpenDoor) {
        let (memory, words) = (Buffer::new(len), Buffer::new(Door::BYTES));
        let door = Door::new(words).unwrap();
        let region = PeerRegion::new(MrKey(7), 0x1000, Region::owned(Arc::clone(&memory)));
        (Reach::new(door.clone(), vec![region]), memory, OpenDoor::new(door))
    }

    fn write(reach: &Reach, addr: u64, rkey: u32, bytes: &[u8]) -> bool {
        let segments = [Segment::of_slice(bytes)];
        reach.write((Remote { addr, rkey }, bytes.len() as u32), 0, &segments)
    }

    #[test]
    fn an_open_door_lets_writes_through_until_it_is_closed() {
        let (reach, memory, open) = reach(4096);
        assert!(write(&reach, 0x1010, 7, b"before"));
        drop(open);
        assert!(!write(&reach, 0x1010, 7, b"behind"));
        assert_eq!(memory.to_vec(0x10, 6), b"before");
        assert!(reach.door.is_empty());
    }

    #[test]
    fn only_the_region_can_be_written() {
        let (reach, memory, _open) = reach(4096);
        let bytes = [1; 64];
        for (addr, rkey) in [(0xfff, 7), (0x1fc1, 7), (u64::MAX, 7), (0, 7), (0x1000, 8)] {
            assert!(!write(&reach, addr, rkey, &bytes), "{addr:#x} with key {rkey}");
        }
        assert!(memory.to_vec(0, 4096).iter().all(|byte| *byte == 0));
        assert!(write(&reach, 0x1fc0, 7, &bytes), "the last bytes");
    }

    #[test]
    fn segments_and_parts_of_a_message_are_put_together() {
        let (reach, memory, _open) = reach(4096);
        let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        let remote = Remote { addr: 0x1003, rkey: 7 };
        for (offset, cut, end) in [(0, 5, 300), (300, 950, 1000)] {
            let segments =
                [Segment::of_slice(&bytes[offset..cut]), Segment::of_slice(&bytes[cut..end])];
            assert!(reach.write((remote, 1000), offset as u32, &segments));
        }
        assert_eq!(memory.to_vec(3, 1000), bytes);
    }

    #[test]
    fn a_door_has_room_for_its_words() {
        assert!(Door::new(Buffer::new(Door::BYTES - 1)).is_none());
    }
}
