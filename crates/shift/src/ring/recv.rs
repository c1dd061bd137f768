//! Receives.

use core::ptr::NonNull;

use bowline_verbs_types::{ibv_recv_wr, ibv_sge};

use super::cursor::{NONE, RecvCursor};
use super::track::Track;
use super::{pieces, translate};

/// A receive. Packed, because there is one for each entry of a queue.
#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
pub(super) struct RecvEntry {
    pub(super) wr_id: u64,
    pub(super) addr: u64,
    pub(super) length: u32,
    /// The index of its key, [`RECV_WIDE`] or [`RECV_EMPTY`].
    pub(super) key: u8,
}

/// Maximum number of keys: receives refer to them by a byte. Receives with other keys are stored in
/// full.
const MAX_KEYS: usize = 250;
const RECV_WIDE: u8 = 255;
/// A receive without memory, for a WRITE with immediate.
const RECV_EMPTY: u8 = 254;
const _: () = assert!(size_of::<RecvEntry>() == 21);

/// The receives of a queue pair. Each has a completion, in order.
pub(crate) struct RecvRing {
    track: Track<RecvCursor>,
    wide: Vec<Option<Box<[ibv_sge]>>>,
    lkeys: Vec<u32>,
}

impl RecvRing {
    /// # Safety
    /// The cursor outlives the ring, and is used only by threads that may use the ring.
    pub(crate) unsafe fn new(capacity: u32, cursor: NonNull<RecvCursor>) -> RecvRing {
        // SAFETY: upheld by the caller.
        let track = unsafe { Track::new(capacity, cursor) };
        let mut ring = RecvRing { track, wide: Vec::new(), lkeys: Vec::new() };
        ring.clear();
        ring
    }

    /// Resets the ring.
    pub(crate) fn clear(&mut self) {
        self.track.cursor_mut().lkey = NONE;
        self.track.clear();
    }

    /// Its size in bytes, without receives that have several scatter entries.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.track.entries.len() * size_of::<RecvEntry>() + self.lkeys.capacity() * size_of::<u32>()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.track.capacity()
    }

    /// Number of receives so far.
    pub(crate) fn tail(&self) -> u64 {
        self.track.tail()
    }

    /// Wraps around: the cursor has reached the end.
    pub(crate) fn wrap(&mut self) {
        self.track.wrap();
    }

    /// Records the receives of a list that the provider has accepted: those before `refused`, or
    /// all if it is null.
    ///
    /// # Safety
    /// It is a list that the program posts.
    #[inline(always)]
    pub(crate) unsafe fn remember_until(
        &mut self,
        mut wr: *const ibv_recv_wr,
        refused: *const ibv_recv_wr,
    ) {
        while !wr.is_null() && wr != refused {
            // SAFETY: upheld by the caller.
            unsafe {
                self.remember(wr);
                wr = (*wr).next;
            }
        }
    }

    /// Records a receive.
    ///
    /// # Safety
    /// It is a receive that the program posts, with its list.
    pub(crate) unsafe fn remember(&mut self, wr: *const ibv_recv_wr) {
        // SAFETY: upheld by the caller.
        unsafe {
            if !self.track.cursor_mut().note::<false>(wr) {
                self.write_other(&*wr);
            }
        }
        self.track.advance();
    }

    fn write(&mut self, entry: RecvEntry) {
        let place = self.track.place();
        self.track.entries[place] = entry;
    }

    fn place_of_key(&mut self, key: u32) -> Option<u8> {
        let known = self.lkeys.iter().position(|known| *known == key);
        if known.is_none() && self.lkeys.len() < MAX_KEYS {
            self.lkeys.push(key);
            return u8::try_from(self.lkeys.len() - 1).ok();
        }
        known.and_then(|place| u8::try_from(place).ok())
    }

    #[cold]
    #[inline(never)]
    unsafe fn write_other(&mut self, wr: &ibv_recv_wr) {
        // SAFETY: the program passed a valid list.
        let sges = unsafe { pieces(wr.sg_list, wr.num_sge) };
        if let [sge] = sges
            && let Some(key) = self.place_of_key(sge.lkey)
        {
            let cursor = self.track.cursor_mut();
            (cursor.lkey, cursor.key) = (sge.lkey.into(), key);
            let (wr_id, addr, length) = (wr.wr_id, sge.addr, sge.length);
            return self.write(RecvEntry { wr_id, addr, length, key });
        }
        if sges.is_empty() {
            let (wr_id, key) = (wr.wr_id, RECV_EMPTY);
            return self.write(RecvEntry { wr_id, addr: 0, length: 0, key });
        }
        if self.wide.is_empty() {
            self.wide.resize_with(self.track.entries.len(), || None);
        }
        let place = self.track.place();
        self.wide[place] = Some(sges.into());
        self.write(RecvEntry { wr_id: wr.wr_id, addr: 0, length: 0, key: RECV_WIDE });
    }

    /// Removes the newest receive: the provider did not accept it.
    pub(crate) fn undo(&mut self) {
        self.track.step_back();
    }

    pub(crate) fn wr_id(&self, number: u64) -> u64 {
        self.track.entries[self.track.place_of_number(number)].wr_id
    }

    /// A receive to be posted again: its memory, with the keys that `local` returns.
    pub(crate) fn resend(
        &self,
        number: u64,
        local: impl Fn(u32) -> Option<u32>,
    ) -> Option<(u64, Vec<ibv_sge>)> {
        let place = self.track.place_of_number(number);
        let RecvEntry { wr_id, addr, length, key } = self.track.entries[place];
        let sges = match key {
            RECV_WIDE => self.wide.get(place)?.as_ref()?.to_vec(),
            RECV_EMPTY => Vec::new(),
            _ => vec![ibv_sge { addr, length, lkey: self.lkeys[usize::from(key)] }],
        };
        Some((wr_id, translate(sges, local)?))
    }
}
