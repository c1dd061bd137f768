//! Where the next request of a ring goes. It is all that the data path touches of one.
//!
//! A ring has one entry more than its queue: a request is written before the provider is asked, and
//! a full queue refuses it. The entry behind the newest request is never one that is outstanding.

use bowline_verbs_types::{ibv_recv_wr, ibv_send_wr};

use super::recv::RecvEntry;
use super::send::Entry;
use super::track::{Cursor, Spot};

/// For sends.
pub(crate) struct SendCursor {
    spot: Spot<Entry>,
    /// Opcode and flags of the request before, as they are in memory.
    pub(super) kind: u64,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// For receives.
pub(crate) struct RecvCursor {
    spot: Spot<RecvEntry>,
    /// The key of the receive before, if that had one.
    pub(super) lkey: u64,
    /// The place of that key.
    pub(super) key: u8,
}

/// What no request has.
pub(super) const NONE: u64 = u64::MAX;

/// Opcode and flags, which lie side by side.
///
/// # Safety
/// It is a request of the program's.
#[inline(always)]
pub(super) unsafe fn kind(wr: *const ibv_send_wr) -> u64 {
    const { assert!(OFFSET_FLAGS == core::mem::offset_of!(ibv_send_wr, opcode) + 4) };
    // SAFETY: both are in the request.
    unsafe { (&raw const (*wr).opcode).cast::<u64>().read_unaligned() }
}

/// Where flags, immediate and remote address begin: 16 bytes.
const OFFSET_FLAGS: usize = core::mem::offset_of!(ibv_send_wr, send_flags);

/// Copies 16 bytes, by one instruction each way. A plain copy would leave out what is overwritten
/// next, and take more of them.
///
/// # Safety
/// Both are good for 16 bytes.
#[inline(always)]
unsafe fn copy_16(from: *const u8, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; every such processor has these.
    unsafe {
        use core::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128};
        _mm_storeu_si128(to.cast(), _mm_loadu_si128(from.cast()));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, 16);
    }
}

impl Cursor for SendCursor {
    type Entry = Entry;

    fn spot(&self) -> &Spot<Entry> {
        &self.spot
    }

    fn spot_mut(&mut self) -> &mut Spot<Entry> {
        &mut self.spot
    }
}

impl Cursor for RecvCursor {
    type Entry = RecvEntry;

    fn spot(&self) -> &Spot<RecvEntry> {
        &self.spot
    }

    fn spot_mut(&mut self) -> &mut Spot<RecvEntry> {
        &mut self.spot
    }
}

impl SendCursor {
    pub(crate) const EMPTY: SendCursor =
        SendCursor { spot: Spot::EMPTY, kind: NONE, lkey: 0, rkey: 0 };

    /// Writes a request that differs from the one before in addresses alone, without moving on;
    /// otherwise does nothing and says so. One of several is not looked at with `ALONE`.
    ///
    /// # Safety
    /// It is one that the program posts, with its list, and the ring is in place.
    #[inline(always)]
    pub(crate) unsafe fn note<const ALONE: bool>(&mut self, wr: *const ibv_send_wr) -> bool {
        // SAFETY: the caller's promise. What a SEND has for a key is compared, not used. An entry
        // has room for all that is copied: what is too much is overwritten by what follows.
        unsafe {
            if (*wr).num_sge != 1 {
                return false;
            }
            let sge = (*wr).sg_list;
            let next = if ALONE { (*wr).next as u64 } else { 0 };
            let keys =
                u64::from((*sge).lkey ^ self.lkey) | u64::from((*wr).wr.rdma.rkey ^ self.rkey);
            if kind(wr) ^ self.kind | next | keys != 0 {
                return false;
            }
            let slot = self.spot.slot;
            copy_16(wr.cast::<u8>().add(OFFSET_FLAGS), slot.cast());
            copy_16(sge.cast(), (&raw mut (*slot).addr).cast());
            (&raw mut (*slot).wr_id).write_unaligned((*wr).wr_id);
        }
        true
    }

    /// Moves on; whether the end of the ring is reached, where it must be put to the beginning.
    #[inline(always)]
    #[must_use]
    pub(crate) fn advance(&mut self) -> bool {
        self.spot.advance()
    }
}

impl RecvCursor {
    pub(crate) const EMPTY: RecvCursor = RecvCursor { spot: Spot::EMPTY, lkey: NONE, key: 0 };

    /// As [`SendCursor::note`].
    ///
    /// # Safety
    /// As that.
    #[inline(always)]
    pub(crate) unsafe fn note<const ALONE: bool>(&mut self, wr: *const ibv_recv_wr) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if (*wr).num_sge != 1 || ALONE && !(*wr).next.is_null() {
                return false;
            }
            let sge = *(*wr).sg_list;
            if u64::from(sge.lkey) != self.lkey {
                return false;
            }
            let (wr_id, addr, length) = ((*wr).wr_id, sge.addr, sge.length);
            self.spot.slot.write(RecvEntry { wr_id, addr, length, key: self.key });
        }
        true
    }

    /// As [`SendCursor::advance`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn advance(&mut self) -> bool {
        self.spot.advance()
    }
}
