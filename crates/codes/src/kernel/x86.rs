//! The loops for x86-64 with GFNI and AVX-512, and with AVX2.
//!
//! `unsafe` because vector loads and stores use raw pointers. Each function first checks that all
//! chunks contain the requested bytes, and that there is a coefficient for each product.

#![allow(unsafe_code)]
// Rows and columns number registers here, and several arrays of them at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{MAX_ROWS, scalar};
use crate::gf::NIBBLES;
use crate::matrix::Coefs;

/// The truth table of a ^ b ^ c for the ternary logic instruction.
const XOR3: i32 = 0x96;

/// Prefetch distance. A CPU's prefetchers follow only some of this many chunks: on cold data this
/// adds half again to the throughput.
const AHEAD: usize = 1024;

/// Proof that the CPU has GFNI and AVX-512.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Gfni(());

impl Gfni {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("gfni");
        has.then_some(Self(()))
    }

    /// See `Kernel::dot`.
    pub(super) fn dot(
        self,
        coefs: Coefs<'_>,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        at: Range<usize>,
        add: bool,
    ) {
        // SAFETY: `self` is proof that the CPU has these instructions.
        unsafe { dot_gfni(coefs, sources, outs, at, add) }
    }

    /// See `Kernel::sum_over`.
    pub(super) fn sum(self, sources: &[&[u8]], out: &mut [u8], at: Range<usize>, add: bool) {
        // SAFETY: as in `dot`.
        unsafe { sum_avx512(sources, out, at, add) }
    }

    /// `dst ^= sum of sources`, all of one length.
    #[inline]
    pub(super) fn xor_all_into<const N: usize>(self, dst: &mut [u8], sources: [&[u8]; N]) {
        // SAFETY: as in `dot`.
        unsafe { xor_all_into_avx512(dst, sources) }
    }
}

/// Proof that the CPU has AVX2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// See `Kernel::dot`.
    pub(super) fn dot(
        self,
        coefs: Coefs<'_>,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        at: Range<usize>,
        add: bool,
    ) {
        // SAFETY: `self` is proof that the CPU has these instructions.
        unsafe { dot_avx2(coefs, sources, outs, at, add) }
    }

    /// See `Kernel::sum_over`.
    pub(super) fn sum(self, sources: &[&[u8]], out: &mut [u8], at: Range<usize>, add: bool) {
        // SAFETY: as in `dot`.
        unsafe { sum_avx2(sources, out, at, add) }
    }

    /// `dst ^= sum of sources`, all of one length.
    #[inline]
    pub(super) fn xor_all_into<const N: usize>(self, dst: &mut [u8], sources: [&[u8]; N]) {
        // SAFETY: as in `dot`.
        unsafe { xor_all_into_avx2(dst, sources) }
    }
}

/// Panics unless all chunks have the bytes `at` and all products have a coefficient: what the
/// pointer arithmetic below relies on.
fn check(coefs: &Coefs<'_>, sources: &[&[u8]], outs: &[&mut [u8]], at: &Range<usize>) {
    assert!(at.start <= at.end);
    assert!(sources.iter().all(|source| source.len() >= at.end));
    assert!(outs.iter().all(|out| out.len() >= at.end));
    assert!(outs.len() == coefs.rows && coefs.rows <= coefs.stride && coefs.rows <= MAX_ROWS);
    if let Some(last) = sources.len().checked_sub(1) {
        let needed = last * coefs.stride + coefs.rows;
        assert!(coefs.affine.len() >= needed && coefs.bytes.len() >= needed);
    }
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn dot_gfni(
    coefs: Coefs<'_>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    at: Range<usize>,
    add: bool,
) {
    check(&coefs, sources, outs, &at);
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match (coefs.rows, coefs.first_is_ones, add) {
                $(
                    ($rows, false, false) => {
                        dot_rows::<$rows, false, false>(coefs, sources, outs, at)
                    }
                    ($rows, false, true) => {
                        dot_rows::<$rows, false, true>(coefs, sources, outs, at)
                    }
                    ($rows, true, false) => {
                        dot_rows::<$rows, true, false>(coefs, sources, outs, at)
                    }
                    ($rows, true, true) => {
                        dot_rows::<$rows, true, true>(coefs, sources, outs, at)
                    }
                )*
                _ => {}
            }
        };
    }
    // SAFETY: `check` has passed.
    unsafe { by_rows!(1 2 3 4 5 6 7 8) }
}

/// [`dot_gfni`] with `ROWS` outputs. `ONES` says that the first of them is the plain sum.
///
/// Two columns of 64 bytes at a time, so that each bit matrix is loaded once for both; two sources
/// at a time, so that one instruction adds two products: one and a half vector instructions per
/// product.
///
/// # Safety
/// [`check`] must have passed, and `ROWS` must be `coefs.rows`.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn dot_rows<const ROWS: usize, const ONES: bool, const ADD: bool>(
    coefs: Coefs<'_>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    at: Range<usize>,
) {
    let mut here = at.start;
    while at.end - here >= 128 {
        // SAFETY: 128 bytes from `here` on are within `at`; the rest is the caller's promise.
        unsafe {
            columns_gfni::<2, ROWS, ONES, ADD>(coefs, sources, outs, here, u64::MAX);
        }
        here += 128;
    }
    while here < at.end {
        let left = at.end - here;
        let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        // SAFETY: what `mask` selects from `here` on is within `at`.
        unsafe {
            columns_gfni::<1, ROWS, ONES, ADD>(coefs, sources, outs, here, mask);
        }
        here += left.min(64);
    }
}

/// `COLUMNS` times 64 bytes of the product at offset `here`; `mask` selects bytes of each 64.
///
/// # Safety
/// [`check`] must have passed for the bytes that the mask selects, and `ROWS` must be `coefs.rows`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn columns_gfni<
    const COLUMNS: usize,
    const ROWS: usize,
    const ONES: bool,
    const ADD: bool,
>(
    coefs: Coefs<'_>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    here: usize,
    mask: u64,
) {
    let first = usize::from(ONES);
    let load = |bytes: *const u8, column: usize| -> __m512i {
        // SAFETY: the bytes under the mask are there, by the caller's promise; the others are not
        // touched.
        unsafe { _mm512_maskz_loadu_epi8(mask, bytes.add(here + 64 * column).cast()) }
    };
    let mut sums = [[_mm512_setzero_si512(); ROWS]; COLUMNS];
    if ADD {
        for column in 0..COLUMNS {
            for row in 0..ROWS {
                sums[column][row] = load(outs[row].as_ptr(), column);
            }
        }
    }
    let mut pairs = sources.chunks_exact(2);
    let mut matrices = coefs.affine.as_ptr();
    for pair in &mut pairs {
        let a: [__m512i; COLUMNS] = std::array::from_fn(|c| load(pair[0].as_ptr(), c));
        let b: [__m512i; COLUMNS] = std::array::from_fn(|c| load(pair[1].as_ptr(), c));
        for column in 0..COLUMNS {
            prefetch(pair[0].as_ptr().wrapping_add(here + 64 * column + AHEAD));
            prefetch(pair[1].as_ptr().wrapping_add(here + 64 * column + AHEAD));
        }
        for row in first..ROWS {
            // SAFETY: `check` has seen that there are coefficients for each source and row.
            let (by_a, by_b) = unsafe {
                let (by_a, by_b) = (matrices.add(row), matrices.add(coefs.stride + row));
                (_mm512_set1_epi64(*by_a as i64), _mm512_set1_epi64(*by_b as i64))
            };
            for column in 0..COLUMNS {
                sums[column][row] = _mm512_ternarylogic_epi64::<XOR3>(
                    sums[column][row],
                    _mm512_gf2p8affine_epi64_epi8::<0>(a[column], by_a),
                    _mm512_gf2p8affine_epi64_epi8::<0>(b[column], by_b),
                );
            }
        }
        if ONES {
            for column in 0..COLUMNS {
                sums[column][0] =
                    _mm512_ternarylogic_epi64::<XOR3>(sums[column][0], a[column], b[column]);
            }
        }
        matrices = matrices.wrapping_add(2 * coefs.stride);
    }
    if let [last] = pairs.remainder() {
        for column in 0..COLUMNS {
            let a = load(last.as_ptr(), column);
            for row in first..ROWS {
                // SAFETY: as above.
                let by_a = unsafe { _mm512_set1_epi64(*matrices.add(row) as i64) };
                let product = _mm512_gf2p8affine_epi64_epi8::<0>(a, by_a);
                sums[column][row] = _mm512_xor_si512(sums[column][row], product);
            }
            if ONES {
                sums[column][0] = _mm512_xor_si512(sums[column][0], a);
            }
        }
    }
    for column in 0..COLUMNS {
        for row in 0..ROWS {
            // SAFETY: the bytes under the mask are within each output, by the caller's promise.
            unsafe {
                let out = outs[row].as_mut_ptr().add(here + 64 * column);
                _mm512_mask_storeu_epi8(out.cast(), mask, sums[column][row]);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn dot_avx2(
    coefs: Coefs<'_>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    at: Range<usize>,
    add: bool,
) {
    check(&coefs, sources, outs, &at);
    let vectors = at.start..at.start + (at.end - at.start) / 32 * 32;
    // Four outputs at a time: their sums and a product's operands fill the registers.
    let mut first = 0;
    for outs in outs.chunks_mut(4) {
        let coefs = coefs.rows(first..first + outs.len());
        for here in vectors.clone().step_by(32) {
            // SAFETY: `check` has passed, and 32 bytes from `here` on are within `at`.
            unsafe {
                match outs.len() {
                    1 => column_avx2::<1>(coefs, sources, outs, here, add),
                    2 => column_avx2::<2>(coefs, sources, outs, here, add),
                    3 => column_avx2::<3>(coefs, sources, outs, here, add),
                    _ => column_avx2::<4>(coefs, sources, outs, here, add),
                }
            }
        }
        first += outs.len();
    }
    scalar::dot(coefs, sources, outs, vectors.end..at.end, add);
}

/// 32 bytes of the product at offset `here`, by looking up the products of half bytes.
///
/// # Safety
/// [`check`] must have passed for these bytes, and `ROWS` must be `coefs.rows`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn column_avx2<const ROWS: usize>(
    coefs: Coefs<'_>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    here: usize,
    add: bool,
) {
    let low_half = _mm256_set1_epi8(15);
    let mut sums = [_mm256_setzero_si256(); ROWS];
    if add {
        for row in 0..ROWS {
            // SAFETY: the output has these bytes, by the caller's promise.
            sums[row] = unsafe { _mm256_loadu_si256(outs[row].as_ptr().add(here).cast()) };
        }
    }
    for (source, coefs) in sources.iter().zip(coefs.bytes.chunks(coefs.stride)) {
        // SAFETY: the source has these bytes, by the caller's promise.
        let x = unsafe { _mm256_loadu_si256(source.as_ptr().add(here).cast()) };
        let low = _mm256_and_si256(x, low_half);
        let high = _mm256_and_si256(_mm256_srli_epi64::<4>(x), low_half);
        for row in 0..ROWS {
            let table: *const __m128i = NIBBLES[usize::from(coefs[row])].as_ptr().cast();
            // SAFETY: a table has 32 bytes.
            let (of_low, of_high) =
                unsafe { (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1))) };
            let of_low = _mm256_broadcastsi128_si256(of_low);
            let of_high = _mm256_broadcastsi128_si256(of_high);
            let product = _mm256_xor_si256(
                _mm256_shuffle_epi8(of_low, low),
                _mm256_shuffle_epi8(of_high, high),
            );
            sums[row] = _mm256_xor_si256(sums[row], product);
        }
    }
    for row in 0..ROWS {
        // SAFETY: the output has these bytes, by the caller's promise.
        unsafe { _mm256_storeu_si256(outs[row].as_mut_ptr().add(here).cast(), sums[row]) };
    }
}

/// Four columns of 64 bytes at a time, all sources side by side: the sum is written once, and this
/// many concurrent streams use more memory bandwidth than one after the other.
#[target_feature(enable = "avx512f,avx512bw")]
fn sum_avx512(sources: &[&[u8]], out: &mut [u8], at: Range<usize>, add: bool) {
    const COLUMNS: usize = 4;
    assert!(sources.iter().all(|source| source.len() >= at.end) && out.len() >= at.end);
    let mut here = at.start;
    while here + 64 * COLUMNS <= at.end {
        let mut sums = [_mm512_setzero_si512(); COLUMNS];
        let out: *mut u8 = out[here..].as_mut_ptr();
        for column in 0..COLUMNS {
            if add {
                // SAFETY: the output has `COLUMNS` times 64 bytes from `here` on.
                sums[column] = unsafe { _mm512_loadu_si512(out.add(64 * column).cast()) };
            }
        }
        for source in sources {
            let source = source[here..].as_ptr();
            for column in 0..COLUMNS {
                prefetch(source.wrapping_add(64 * column + AHEAD));
                // SAFETY: so has each source.
                let x = unsafe { _mm512_loadu_si512(source.add(64 * column).cast()) };
                sums[column] = _mm512_xor_si512(sums[column], x);
            }
        }
        for column in 0..COLUMNS {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(out.add(64 * column).cast(), sums[column]) };
        }
        here += 64 * COLUMNS;
    }
    scalar::sum(sources, out, here..at.end, add);
}

/// Prefetches the line of an address, which need not be valid.
#[inline]
fn prefetch(address: *const u8) {
    // SAFETY: prefetching faults on no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

#[target_feature(enable = "avx2")]
fn sum_avx2(sources: &[&[u8]], out: &mut [u8], at: Range<usize>, add: bool) {
    scalar::sum(sources, out, at, add);
}

/// What `xor_all_into` does per iteration: enough to make loop overhead negligible.
const STEP: usize = 256;

#[target_feature(enable = "avx2")]
fn xor_all_into_avx2<const N: usize>(dst: &mut [u8], sources: [&[u8]; N]) {
    assert!(sources.iter().all(|source| source.len() == dst.len()));
    let whole = dst.len() - dst.len() % STEP;
    let (out, sources_at) = (dst.as_mut_ptr(), sources.map(<[u8]>::as_ptr));
    let mut here = 0;
    while here < whole {
        for at in (here..here + STEP).step_by(32) {
            // SAFETY: `at` is 32 bytes or more before the end of all slices, which have one length.
            unsafe {
                let mut sum = _mm256_loadu_si256(out.add(at).cast());
                for source in sources_at {
                    sum = _mm256_xor_si256(sum, _mm256_loadu_si256(source.add(at).cast()));
                }
                _mm256_storeu_si256(out.add(at).cast(), sum);
            }
        }
        here += STEP;
    }
    if whole < dst.len() {
        for source in sources {
            scalar::xor_into(&mut dst[whole..], &source[whole..]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn xor_all_into_avx512<const N: usize>(dst: &mut [u8], sources: [&[u8]; N]) {
    assert!(sources.iter().all(|source| source.len() == dst.len()));
    let whole = dst.len() - dst.len() % STEP;
    let (out, sources_at) = (dst.as_mut_ptr(), sources.map(<[u8]>::as_ptr));
    let mut here = 0;
    while here < whole {
        for at in (here..here + STEP).step_by(64) {
            // SAFETY: `at` is 64 bytes or more before the end of all slices, which have one length.
            unsafe {
                let mut sum = _mm512_loadu_si512(out.add(at).cast());
                for source in sources_at {
                    sum = _mm512_xor_si512(sum, _mm512_loadu_si512(source.add(at).cast()));
                }
                _mm512_storeu_si512(out.add(at).cast(), sum);
            }
        }
        here += STEP;
    }
    if whole < dst.len() {
        for source in sources {
            scalar::xor_into(&mut dst[whole..], &source[whole..]);
        }
    }
}
