//! Streaming stores: writing to memory past the caches.
//!
//! An ordinary store to uncached memory reads the line first and evicts something useful. A
//! streaming store does neither: from a receive ring to uncached memory it is two to three times as
//! fast. To cached memory it is slower, and the next reader of that memory waits. So a region keeps
//! a [`Trail`] of where it was written, and only writes that do not return to a recent place are
//! streamed.
//!
//! Other threads may see streaming stores in any order. A program may wait for a completion, or for
//! the last byte of a message, so the packet that ends a message is stored the ordinary way, after
//! a fence for all others. A fence per packet would cost what streaming gains. Processors other
//! than x86 do not order ordinary stores either, so there every store counts as streamed.

#![allow(unsafe_code)]

use core::cell::Cell;

/// Size of a core's own cache: a place written less than this many bytes ago is still in it.
const CACHE_BYTES: u64 = 1 << 20;
/// Runs that a trail remembers.
const RUNS: usize = 4;
/// Shorter writes are not worth streaming.
const MIN_BYTES: usize = 512;

/// Other threads see ordinary stores in the order in which they were made.
const STORES_ARE_ORDERED: bool = cfg!(target_arch = "x86_64");

/// Where a region was written recently: runs of writes, each continuing where the one before ended.
#[derive(Debug)]
pub(super) struct Trail {
    /// Where the run goes on.
    next: Cell<usize>,
    /// The run is not in the cache.
    cold: Cell<bool>,
    /// Bytes written in all.
    written: Cell<u64>,
    runs: Cell<[Run; RUNS]>,
    /// Which of them is the oldest.
    oldest: Cell<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: usize,
    /// Bytes that had been written before the run.
    before: u64,
}

impl Default for Trail {
    /// Of memory that nobody has written.
    fn default() -> Self {
        let nowhere = Run { start: usize::MAX, before: 0 };
        Trail {
            next: Cell::new(nowhere.start),
            cold: Cell::new(false),
            written: Cell::new(0),
            runs: Cell::new([nowhere; RUNS]),
            oldest: Cell::new(0),
        }
    }
}

impl Trail {
    /// Records a write; tells whether to [`copy`] it, with a [`settle`] in the end.
    #[inline]
    pub(super) fn goes_on(&self, offset: usize, len: usize) -> bool {
        let pays = self.follow(offset, len);
        pays || !STORES_ARE_ORDERED
    }

    /// Records a write; tells whether streaming it pays.
    #[inline]
    fn follow(&self, offset: usize, len: usize) -> bool {
        if offset != self.next.get() {
            self.begin(offset);
        }
        self.next.set(offset + len);
        self.written.set(self.written.get() + len as u64);
        self.cold.get() && len >= MIN_BYTES
    }

    #[inline(never)]
    fn begin(&self, offset: usize) {
        let written = self.written.get();
        let mut runs = self.runs.get();
        let is_warm = |run: &Run| {
            run.start.abs_diff(offset) as u64 <= CACHE_BYTES && written - run.before <= CACHE_BYTES
        };
        self.cold.set(!runs.iter().any(is_warm));
        runs[usize::from(self.oldest.get())] = Run { start: offset, before: written };
        self.runs.set(runs);
        self.oldest.set((self.oldest.get() + 1) % RUNS as u8);
    }
}

/// How far ahead of the copy memory is prefetched that may be in no cache. Hardware prefetching
/// stops at the end of each page.
const AHEAD_BYTES: usize = 1024;

/// Copies bytes past the caches, if the processor can. Other threads may see them in any order
/// before [`settle`].
///
/// # Safety
/// `to` is valid for so many bytes, and they are not `bytes`.
#[inline]
pub(super) unsafe fn copy(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { copy_between::<0>(bytes.as_ptr(), to, bytes.len()) }
}

/// The same from memory that may be in no cache, and that others may write meanwhile.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they are apart.
#[inline]
pub(super) unsafe fn copy_far(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { copy_between::<AHEAD_BYTES>(from, to, len) }
}

/// # Safety
/// As of [`copy_far`].
#[inline]
unsafe fn copy_between<const AHEAD: usize>(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor supports it; the rest is the caller's contract.
        return unsafe { x86::copy::<AHEAD>(from, to, len) };
    }
    // SAFETY: the caller's contract.
    unsafe { to.copy_from_nonoverlapping(from, len) };
}

/// A store fence: copied bytes are visible before anything that is stored from now on.
#[inline]
pub(super) fn settle() {
    // SAFETY: every x86-64 processor has the instruction.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm512_loadu_si512, _mm512_stream_si512};

    /// Bytes of a cache line, and of a vector: a whole line is written without being read.
    const LINE: usize = 64;

    /// Prefetches `AHEAD` bytes ahead, if that is not 0.
    ///
    /// # Safety
    /// As of [`super::copy_far`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn copy<const AHEAD: usize>(from: *const u8, to: *mut u8, len: usize) {
        let head = to.align_offset(LINE).min(len);
        let body_end = len - (len - head) % LINE;
        // SAFETY: the three parts together have `len` bytes. The middle one starts at a line of
        // `to`. A prefetch is a hint, ignored for an address that is not mapped.
        unsafe {
            to.copy_from_nonoverlapping(from, head);
            for at in (head..body_end).step_by(LINE) {
                if AHEAD > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD).cast());
                }
                _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
            }
            to.add(body_end).copy_from_nonoverlapping(from.add(body_end), len - body_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Writes messages of a size at these places, in packets of 4 KiB; returns which were streamed.
    fn streamed(len: usize, places: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let trail = Trail::default();
        let message = |place: usize| {
            let packets = (0..len / 4096).map(|k| trail.follow(place + k * 4096, 4096));
            let streamed: Vec<bool> = packets.collect();
            assert!(streamed.iter().all(|s| *s == streamed[0]), "a message is written in one way");
            streamed[0]
        };
        places.into_iter().map(message).collect()
    }

    #[test]
    fn a_buffer_that_is_used_again_and_again_stays_in_the_cache() {
        assert_eq!(streamed(MIB, [0; 5]), [true, false, false, false, false]);
        let ring = (0..200).map(|n| n % 16 * 65_536);
        assert!(streamed(65_536, ring).iter().skip(16).all(|streamed| !streamed));
    }

    #[test]
    fn a_large_buffer_is_streamed() {
        let ring = (0..64).map(|n| n % 16 * 4 * MIB);
        assert!(streamed(4 * MIB, ring).iter().all(|streamed| *streamed));
    }

    #[test]
    fn messages_far_apart_are_streamed() {
        let places = (1..40).map(|n| n * 37 % 64 * 8 * MIB + 4096);
        assert!(streamed(2 * MIB, places).iter().all(|streamed| *streamed));
    }

    #[test]
    fn only_x86_orders_stores_that_are_not_streamed() {
        let trail = Trail::default();
        trail.goes_on(0, 4096);
        let unordered = cfg!(not(target_arch = "x86_64"));
        assert_eq!(trail.goes_on(0, 8), unordered, "a short packet of a message, to warm memory");
    }

    #[test]
    fn every_length_and_alignment_is_copied_and_no_byte_more() {
        let bytes: Vec<u8> = (0..700u32).map(|i| (i * 7 + 1) as u8 | 1).collect();
        for at in 0..70 {
            for len in [0, 1, 63, 64, 65, 127, 128, 200, 511, 512, 700] {
                let mut to = vec![0; 900];
                // SAFETY: 70 + 700 bytes fit.
                unsafe { copy(&bytes[..len], to.as_mut_ptr().add(at)) };
                assert!(to[at..at + len] == bytes[..len], "{at} {len}");
                let around = to[..at].iter().chain(&to[at + len..]);
                assert!(around.into_iter().all(|byte| *byte == 0), "{at} {len}");
                let mut far = vec![0; 900];
                // SAFETY: as above.
                unsafe { copy_far(bytes.as_ptr(), far.as_mut_ptr().add(at), len) };
                assert!(far == to, "{at} {len}");
            }
        }
    }
}
