//! The position of the next request in a ring. The data path touches nothing else of a ring.
//!
//! A ring has one entry more than its queue, because a request is written before the provider is
//! called, and a full queue refuses it. The entry after the newest request never holds an
//! outstanding one.

use bowline_verbs_types::{ibv_recv_wr, ibv_send_wr};

use super::recv::RecvEntry;
use super::send::Entry;
use super::track::{Cursor, Spot};

/// For sends.
pub(crate) struct SendCursor {
    spot: Spot<Entry>,
    /// Opcode and flags of the previous request, as laid out in memory.
    pub(super) kind: u64,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// For receives.
pub(crate) struct RecvCursor {
    spot: Spot<RecvEntry>,
    /// The key of the previous receive, if it had one.
    pub(super) lkey: u64,
    /// The index of that key.
    pub(super) key: u8,
}

/// A value that no request has.
pub(super) const NONE: u64 = u64::MAX;

/// Opcode and flags, which are adjacent.
///
/// # Safety
/// `wr` is a valid request of the program.
#[inline(always)]
pub(super) unsafe fn kind(wr: *const ibv_send_wr) -> u64 {
    const { assert!(OFFSET_FLAGS == core::mem::offset_of!(ibv_send_wr, opcode) + 4) };
    // SAFETY: both fields are in the request.
    unsafe { (&raw const (*wr).opcode).cast::<u64>().read_unaligned() }
}

/// Offset of flags, immediate and remote address: 16 bytes.
const OFFSET_FLAGS: usize = core::mem::offset_of!(ibv_send_wr, send_flags);

/// Copies 16 bytes with one load and one store. For a plain copy, the compiler would skip bytes
/// that are overwritten next, and use more instructions.
///
/// # Safety
/// Both pointers are valid for 16 bytes.
#[inline(always)]
unsafe fn copy_16(from: *const u8, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: upheld by the caller; every x86-64 processor has these instructions.
    unsafe {
        use core::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128};
        _mm_storeu_si128(to.cast(), _mm_loadu_si128(from.cast()));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: upheld by the caller.
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

    /// Writes a request that differs from the previous one only in its addresses, without
    /// advancing. Otherwise does nothing and returns `false`. With `ALONE`, it also rejects a
    /// request that is followed by others.
    ///
    /// # Safety
    /// It is a request that the program posts, with its list, and the ring is in place.
    #[inline(always)]
    pub(crate) unsafe fn note<const ALONE: bool>(&mut self, wr: *const ibv_send_wr) -> bool {
        // SAFETY: upheld by the caller. For a SEND, the remote key is compared but not used. An
        // entry has room for everything that is copied: excess bytes are overwritten by the next
        // write.
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

    /// Advances. Returns whether the end of the ring is reached; the cursor must then be reset to
    /// the start.
    #[inline(always)]
    #[must_use]
    pub(crate) fn advance(&mut self) -> bool {
        self.spot.advance()
    }
}

impl RecvCursor {
    pub(crate) const EMPTY: RecvCursor = RecvCursor { spot: Spot::EMPTY, lkey: NONE, key: 0 };

    /// Like [`SendCursor::note`].
    ///
    /// # Safety
    /// Same as for that function.
    #[inline(always)]
    pub(crate) unsafe fn note<const ALONE: bool>(&mut self, wr: *const ibv_recv_wr) -> bool {
        // SAFETY: upheld by the caller.
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

    /// Like [`SendCursor::advance`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn advance(&mut self) -> bool {
        self.spot.advance()
    }
}
