//! Receives.

use bowline_verbs_types::{ibv_recv_wr, ibv_sge};

use super::{place_of, translate};

/// A receive: packed, as there is one for each of a queue.
#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
struct RecvEntry {
    wr_id: u64,
    addr: u64,
    length: u32,
    /// The place of its key, [`RECV_WIDE`] or [`RECV_EMPTY`].
    key: u8,
}

const RECV_WIDE: u8 = 255;
/// No memory at all: for a WRITE with immediate.
const RECV_EMPTY: u8 = 254;
const _: () = assert!(size_of::<RecvEntry>() == 21);

/// The receives of a queue pair. Each has a completion, in order.
pub(crate) struct RecvRing {
    entries: Box<[RecvEntry]>,
    wide: Vec<Option<Box<[ibv_sge]>>>,
    lkeys: Vec<u32>,
    last_lkey: u32,
    last_key: u8,
    place: usize,
    pub(crate) tail: u64,
}

impl RecvRing {
    pub(crate) fn new(capacity: u32) -> RecvRing {
        let capacity = capacity.max(1) as usize;
        RecvRing {
            entries: vec![RecvEntry::default(); capacity].into_boxed_slice(),
            wide: Vec::new(),
            lkeys: Vec::new(),
            last_lkey: 0,
            last_key: RECV_WIDE,
            place: 0,
            tail: 0,
        }
    }

    /// Bytes that it takes, without receives of several pieces.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + self.lkeys.capacity() * size_of::<u32>()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Remembers the receives of a list that the provider has taken: those before `refused`, or all
    /// if that is null.
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
            // SAFETY: the caller's promise.
            unsafe {
                self.remember(wr);
                wr = (*wr).next;
            }
        }
    }

    /// Remembers a receive.
    ///
    /// # Safety
    /// It is one that the program posts, with its list.
    #[inline(always)]
    pub(crate) unsafe fn remember(&mut self, wr: *const ibv_recv_wr) {
        // SAFETY: the program's own request.
        let wr = unsafe { &*wr };
        if wr.num_sge != 1 || self.last_key == RECV_WIDE {
            // SAFETY: as above.
            return unsafe { self.remember_other(wr) };
        }
        // SAFETY: it has one piece of memory.
        let sge = unsafe { *wr.sg_list };
        if sge.lkey != self.last_lkey {
            // SAFETY: as above.
            return unsafe { self.remember_other(wr) };
        }
        let key = self.last_key;
        self.put(RecvEntry { wr_id: wr.wr_id, addr: sge.addr, length: sge.length, key });
    }

    #[inline(always)]
    fn put(&mut self, entry: RecvEntry) {
        let place = self.place;
        // SAFETY: the place is one of the ring's: it is only ever set below.
        unsafe { *self.entries.get_unchecked_mut(place) = entry };
        self.place = if place + 1 == self.entries.len() { 0 } else { place + 1 };
        self.tail += 1;
    }

    #[cold]
    #[inline(never)]
    unsafe fn remember_other(&mut self, wr: &ibv_recv_wr) {
        let sges: &[ibv_sge] = match usize::try_from(wr.num_sge) {
            Ok(count) if count > 0 => {
                // SAFETY: the program's own list.
                unsafe { core::slice::from_raw_parts(wr.sg_list, count) }
            }
            _ => &[],
        };
        if let [sge] = sges
            && let Some(key) = place_of(&mut self.lkeys, sge.lkey)
        {
            (self.last_lkey, self.last_key) = (sge.lkey, key);
            let (wr_id, addr, length) = (wr.wr_id, sge.addr, sge.length);
            return self.put(RecvEntry { wr_id, addr, length, key });
        }
        if sges.is_empty() {
            let (wr_id, key) = (wr.wr_id, RECV_EMPTY);
            return self.put(RecvEntry { wr_id, addr: 0, length: 0, key });
        }
        if self.wide.is_empty() {
            self.wide.resize_with(self.entries.len(), || None);
        }
        self.wide[self.place] = Some(sges.into());
        self.put(RecvEntry { wr_id: wr.wr_id, addr: 0, length: 0, key: RECV_WIDE });
    }

    /// Forgets the newest receives: the provider did not take them.
    pub(crate) fn undo(&mut self, count: u64) {
        for _ in 0..count.min(self.tail) {
            self.place = self.place.checked_sub(1).unwrap_or(self.entries.len() - 1);
            self.tail -= 1;
        }
    }

    fn place_of_number(&self, number: u64) -> usize {
        let back = (self.tail - number) as usize;
        (self.place + self.entries.len() - back) % self.entries.len()
    }

    pub(crate) fn wr_id(&self, number: u64) -> u64 {
        self.entries[self.place_of_number(number)].wr_id
    }

    /// A receive to be posted again: its memory, with the keys that `local` gives.
    pub(crate) fn resend(
        &self,
        number: u64,
        local: impl Fn(u32) -> Option<u32>,
    ) -> Option<(u64, Vec<ibv_sge>)> {
        let place = self.place_of_number(number);
        let RecvEntry { wr_id, addr, length, key } = self.entries[place];
        let sges = match key {
            RECV_WIDE => self.wide.get(place)?.as_ref()?.to_vec(),
            RECV_EMPTY => Vec::new(),
            _ => vec![ibv_sge { addr, length, lkey: self.lkeys[usize::from(key)] }],
        };
        Some((wr_id, translate(sges, local)?))
    }
}
