//! CRC-32 by carry-less multiplication, which copies the bytes in the same pass.
//!
//! Hand-written because of that copy. Payload to be sent is usually uncached, and goes into a
//! packet: reading it once for the checksum and again for the packet would cost the sender a fifth
//! of its time. For the same reason the start of the next page is prefetched meanwhile: hardware
//! prefetching stops at a page boundary, and a packet is about a page.

#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use super::live::LiveBytes;
use super::table;

#[cfg(test)]
mod tests;

/// The register after `bytes`.
#[inline]
pub(super) fn update(reg: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < MIN_BYTES { table::update(reg, bytes) } else { update_long(reg, bytes) }
}

/// Out of line, so that the many callers with a few bytes do not pay for it.
#[inline(never)]
fn update_long(reg: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    if x86::is_available() {
        let (words, rest) = bytes.split_at(bytes.len() & !3);
        // SAFETY: the processor supports the function, and these are whole words.
        let reg = unsafe { x86::update(reg, words) };
        return table::update(reg, rest);
    }
    by_crate(reg, bytes)
}

/// The register after `bytes`, which are copied to the start of `room`.
///
/// Others may write `bytes` meanwhile. The register is then that of the copy: every byte of the
/// source is read once, and the sum covers what was read.
///
/// # Panics
/// If there is less room than bytes.
#[inline]
pub(super) fn copy(reg: u32, bytes: LiveBytes<'_>, room: &mut [MaybeUninit<u8>]) -> u32 {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    if bytes.len() >= MIN_BYTES && x86::is_available() {
        return copy_wide(reg, bytes, room);
    }
    copy_narrow(reg, bytes, room)
}

/// For a processor on which [`x86::is_available`] is true, and at least one word.
#[cfg(all(target_arch = "x86_64", feature = "std"))]
#[inline]
fn copy_wide(reg: u32, bytes: LiveBytes<'_>, room: &mut [MaybeUninit<u8>]) -> u32 {
    let room = &mut room[..bytes.len()];
    let (words, rest) = bytes.split_at(bytes.len() & !3);
    let (words_room, rest_room) = room.split_at_mut(words.len());
    let rest = rest.copy_to(rest_room);
    // SAFETY: the processor supports the function, these are whole words, and `room` is as long.
    let reg = unsafe { x86::copy(reg, words, words_room) };
    table::update(reg, rest)
}

/// For any processor.
#[inline]
fn copy_narrow(reg: u32, bytes: LiveBytes<'_>, room: &mut [MaybeUninit<u8>]) -> u32 {
    let copy = bytes.copy_to(room);
    if copy.len() < MIN_BYTES { table::update(reg, copy) } else { by_crate(reg, copy) }
}

/// From this many bytes on, vectors beat tables; measured.
const MIN_BYTES: usize = 32;

/// For other processors.
fn by_crate(reg: u32, bytes: &[u8]) -> u32 {
    // crc32fast keeps the register complemented between calls.
    let mut hasher = crc32fast::Hasher::new_with_initial(!reg);
    hasher.update(bytes);
    !hasher.finalize()
}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
mod x86 {
    use core::arch::x86_64::{
        __m128i, __m512i, _MM_HINT_T0, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi64_si128,
        _mm_extract_epi32, _mm_prefetch, _mm_srli_si128, _mm_xor_si128, _mm512_castsi512_si128,
        _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_mask_storeu_epi32, _mm512_maskz_loadu_epi32, _mm512_maskz_set1_epi32,
        _mm512_setzero_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };
    use core::mem::MaybeUninit;
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::super::live::LiveBytes;
    use super::super::poly::x_to;
    use super::super::table::POLY;

    /// Bytes of a vector.
    const LANE: usize = 64;
    /// Bytes of one step: four sums side by side hide each other's latency.
    const STEP: usize = 4 * LANE;
    /// Bytes of the next page to prefetch; the processor fetches the rest by itself.
    const AHEAD_BYTES: usize = 1024;
    const PAGE: usize = 4096;

    /// Whether the processor has the features, cached. Querying the two features takes as many
    /// instructions as summing the headers.
    static AVAILABLE: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    #[inline]
    pub(super) fn is_available() -> bool {
        match AVAILABLE.load(Ordering::Relaxed) {
            UNKNOWN => look(),
            known => known == YES,
        }
    }

    #[cold]
    fn look() -> bool {
        let is_available =
            std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("vpclmulqdq");
        AVAILABLE.store(if is_available { YES } else { NO }, Ordering::Relaxed);
        is_available
    }

    /// # Safety
    /// As of [`sum`].
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) unsafe fn update(reg: u32, bytes: &[u8]) -> u32 {
        // SAFETY: the caller's contract, and nothing is copied.
        unsafe { sum::<false>(reg, bytes.into(), core::ptr::null_mut()) }
    }

    /// # Safety
    /// As of [`sum`].
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) unsafe fn copy(reg: u32, bytes: LiveBytes<'_>, room: &mut [MaybeUninit<u8>]) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { sum::<true>(reg, bytes, room.as_mut_ptr().cast()) }
    }

    /// The register after `bytes`. If `COPY`, they are copied to `to`.
    ///
    /// # Safety
    /// They are whole words, at least one. If `COPY`, `to` has room for all of them, elsewhere.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    unsafe fn sum<const COPY: bool>(reg: u32, bytes: LiveBytes<'_>, to: *mut u8) -> u32 {
        let from = bytes.as_ptr();
        // SAFETY: (of `load`) callers pass offsets at least a vector before the end of `bytes`;
        // `to` has the same length.
        let load = |at: usize| unsafe {
            let lane = _mm512_loadu_si512(from.add(at).cast());
            if COPY {
                _mm512_storeu_si512(to.add(at).cast(), lane);
            }
            lane
        };
        // Leading zeroes, with a register of zero, change nothing: the first vector is padded so
        // that all others are full.
        let missing = bytes.len().wrapping_neg() % LANE;
        let words = u16::MAX << (missing / 4);
        // SAFETY: the words that `words` leaves out are not touched; the others are those of
        // `bytes`.
        let first = unsafe {
            let first = _mm512_maskz_loadu_epi32(words, from.wrapping_sub(missing).cast());
            if COPY {
                _mm512_mask_storeu_epi32(to.wrapping_sub(missing).cast(), words, first);
            }
            first
        };
        let start = _mm512_maskz_set1_epi32(words & words.wrapping_neg(), reg.cast_signed());
        let mut all = _mm512_xor_si512(first, start);
        let mut at = LANE - missing;
        let by_lane = vector(&BY_LANE);
        if COPY {
            ahead(from);
        }
        if at + 3 * LANE <= bytes.len() {
            let mut sums = [all, load(at), load(at + LANE), load(at + 2 * LANE)];
            at += 3 * LANE;
            let by_step = vector(&BY_STEP);
            while at + STEP <= bytes.len() {
                if COPY && at < AHEAD_BYTES {
                    ahead(from.wrapping_add(at));
                }
                // Unrolled: the compiler turns a loop into a call of `memcpy` and another loop.
                sums = [
                    moved(sums[0], by_step, load(at)),
                    moved(sums[1], by_step, load(at + LANE)),
                    moved(sums[2], by_step, load(at + 2 * LANE)),
                    moved(sums[3], by_step, load(at + 3 * LANE)),
                ];
                at += STEP;
            }
            let [first, others @ ..] = sums;
            all = first;
            for sum in others {
                all = moved(all, by_lane, sum);
            }
        }
        while at + LANE <= bytes.len() {
            all = moved(all, by_lane, load(at));
            at += LANE;
        }
        // All but the last of the vector's four parts are followed by bytes of it.
        let parts = moved(all, vector(&BY_REST), _mm512_setzero_si512());
        let of_three = _mm_xor_si128(
            _mm_xor_si128(_mm512_castsi512_si128(parts), _mm512_extracti32x4_epi32::<1>(parts)),
            _mm512_extracti32x4_epi32::<2>(parts),
        );
        reduced(_mm_xor_si128(of_three, _mm512_extracti32x4_epi32::<3>(all)))
    }

    /// The register after sixteen bytes, from one of zero. No table: the packets that pass through
    /// the L1 cache would evict it.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn reduced(sum: __m128i) -> u32 {
        let word = |value: u64| _mm_cvtsi64_si128(value.cast_signed());
        let low_word = |of| _mm_and_si128(of, word(0xffff_ffff));
        let times = |a, b: u64| _mm_clmulepi64_si128::<0x00>(a, word(b));
        // The first eight bytes, then four of the rest, are moved to where the others are.
        let eight = _mm_xor_si128(_mm_srli_si128::<8>(sum), times(sum, BY_EIGHT));
        let four = _mm_xor_si128(_mm_srli_si128::<4>(eight), times(low_word(eight), BY_FOUR));
        // Subtract the multiple of the polynomial that has the same lower word (Barrett).
        let multiple = times(low_word(times(low_word(four), INVERSE)), MODULUS);
        _mm_extract_epi32::<1>(_mm_xor_si128(four, multiple)).cast_unsigned()
    }

    const BY_EIGHT: u64 = (x_to(96) as u64) << 1;
    const BY_FOUR: u64 = (x_to(64) as u64) << 1;
    /// The full polynomial: x^32 is bit 0.
    const MODULUS: u64 = (POLY as u64) << 1 | 1;
    /// Its inverse, which makes 1 of it in the lower word.
    const INVERSE: u64 = {
        let (mut inverse, mut product) = (0, 0);
        let mut bit = 0;
        while bit < u32::BITS {
            if (product >> bit) & 1 != (bit == 0) as u64 {
                inverse |= 1 << bit;
                product ^= MODULUS << bit;
            }
            bit += 1;
        }
        inverse
    };

    /// Prefetches the bytes of one step, a page ahead. There need not be any.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn ahead(from: *const u8) {
        for i in 0..STEP / LANE {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PAGE + i * LANE).cast());
        }
    }

    /// Moves each 16 bytes of a sum past the bytes that the factors are for, and adds what is
    /// there.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn moved(sum: __m512i, factors: __m512i, there: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
        /// Exclusive or of all three.
        const XOR3: i32 = 0x96;
        _mm512_ternarylogic_epi64::<XOR3>(low, high, there)
    }

    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn vector(factors: &Factors) -> __m512i {
        // SAFETY: it is as long as a vector.
        unsafe { _mm512_loadu_si512(factors.as_ptr().cast()) }
    }

    /// Factors for the four parts of a vector, two for each.
    type Factors = [i64; 8];

    const BY_STEP: Factors = factors([STEP; 4]);
    const BY_LANE: Factors = factors([LANE; 4]);
    /// For each part, the bytes of the vector after it.
    const BY_REST: Factors = factors([48, 32, 16, 0]);

    /// Factors that move each part past this many bytes. A part's halves are reflected polynomials,
    /// whose products are one place off: x^(8n + 32) and x^(8n - 32), shifted by one.
    const fn factors(bytes: [usize; 4]) -> Factors {
        let mut factors = [0; 8];
        let mut i = 0;
        while i < bytes.len() {
            let bits = 8 * bytes[i];
            // A part that stays in place contributes nothing here.
            if bits > 0 {
                factors[2 * i] = (x_to(bits + 32) as i64) << 1;
                factors[2 * i + 1] = (x_to(bits - 32) as i64) << 1;
            }
            i += 1;
        }
        factors
    }
}
