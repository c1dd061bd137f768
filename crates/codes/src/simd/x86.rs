//! The vectors of x86-64: AVX-512, and AVX2 with F16C.

use std::arch::x86_64::*;

use super::{Job, Lanes};
use crate::half::NAN_F32;

/// To nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
/// The truth table of a ^ (b & c) for the ternary logic instruction.
const XOR_AND: i32 = 0x78;

/// Proof that the CPU has AVX-512.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && Avx2::detect().is_some();
        has.then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<J: Job>(self, job: J) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
        fn run<J: Job>(job: J) {
            job.run::<Sixteen>();
        }
        // SAFETY: `self` is proof that the CPU has these instructions.
        unsafe { run(job) }
    }
}

/// Proof that the CPU has AVX2 and F16C.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<J: Job>(self, job: J) {
        #[target_feature(enable = "avx2,f16c")]
        fn run<J: Job>(job: J) {
            job.run::<Eight>();
        }
        // SAFETY: `self` is proof that the CPU has these instructions.
        unsafe { run(job) }
    }
}

/// A register of AVX-512.
#[derive(Clone, Copy)]
struct Sixteen(__m512);

/// A register of AVX2.
#[derive(Clone, Copy)]
struct Eight(__m256);

// In both of the following a value is proof that the CPU has the instructions, guaranteed by its
// loader; for addresses, loads and stores rely on their callers' promise.

impl Lanes for Sixteen {
    const LANES: usize = 16;
    type Words = __m512i;

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_ps(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn store_f32<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            if STREAM {
                _mm512_stream_ps(to.cast(), self.0);
            } else {
                _mm512_storeu_ps(to.cast(), self.0);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_bf16<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_castps_si512(self.canonical().0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
            store_256::<STREAM>(_mm512_cvtepi32_epi16(rounded), to);
        }
    }

    #[inline(always)]
    unsafe fn store_f16<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { store_256::<STREAM>(_mm512_cvtps_ph::<NEAREST>(self.canonical().0), to) }
    }

    #[inline(always)]
    unsafe fn words(from: &[u32]) -> Self::Words {
        // SAFETY: see above; the slice has as many words as there are lanes, or this panics.
        unsafe { _mm512_loadu_si512(from[..Self::LANES].as_ptr().cast()) }
    }

    #[inline(always)]
    fn flip(self, words: Self::Words, bit: u32) -> Self {
        // SAFETY: see above.
        unsafe {
            let left = _mm512_sllv_epi32(words, _mm512_set1_epi32(31 - bit as i32));
            let sign = _mm512_set1_epi32(i32::MIN);
            let bits = _mm512_castps_si512(self.0);
            let flipped = _mm512_ternarylogic_epi32::<XOR_AND>(bits, left, sign);
            Self(_mm512_castsi512_ps(flipped))
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn scale(self, by: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mul_ps(self.0, _mm512_set1_ps(by)) })
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            Self(_mm512_mask_mov_ps(self.0, nan, _mm512_set1_ps(NAN_F32)))
        }
    }

    #[inline(always)]
    fn fence() {
        Eight::fence();
    }
}

/// # Safety
/// As of [`Lanes::store_f32`].
#[inline(always)]
unsafe fn store_256<const STREAM: bool>(bits: __m256i, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if STREAM {
            _mm256_stream_si256(to.cast(), bits);
        } else {
            _mm256_storeu_si256(to.cast(), bits);
        }
    }
}

/// # Safety
/// As of [`Lanes::store_f32`].
#[inline(always)]
unsafe fn store_128<const STREAM: bool>(bits: __m128i, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if STREAM {
            _mm_stream_si128(to.cast(), bits);
        } else {
            _mm_storeu_si128(to.cast(), bits);
        }
    }
}

impl Lanes for Eight {
    const LANES: usize = 8;
    type Words = __m256i;

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_loadu_ps(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn store_f32<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            if STREAM {
                _mm256_stream_ps(to.cast(), self.0);
            } else {
                _mm256_storeu_ps(to.cast(), self.0);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_bf16<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            let bits = _mm256_castps_si256(self.canonical().0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
            // Packing works within halves of the register.
            let packed = _mm256_packus_epi32(rounded, rounded);
            let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
            store_128::<STREAM>(_mm256_castsi256_si128(packed), to);
        }
    }

    #[inline(always)]
    unsafe fn store_f16<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            store_128::<STREAM>(
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.canonical().0),
                to,
            )
        }
    }

    #[inline(always)]
    unsafe fn words(from: &[u32]) -> Self::Words {
        // SAFETY: see above; the slice has as many words as there are lanes, or this panics.
        unsafe { _mm256_loadu_si256(from[..Self::LANES].as_ptr().cast()) }
    }

    #[inline(always)]
    fn flip(self, words: Self::Words, bit: u32) -> Self {
        // SAFETY: see above.
        unsafe {
            let left = _mm256_sllv_epi32(words, _mm256_set1_epi32(31 - bit as i32));
            let sign = _mm256_and_si256(left, _mm256_set1_epi32(i32::MIN));
            Self(_mm256_xor_ps(self.0, _mm256_castsi256_ps(sign)))
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn scale(self, by: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_mul_ps(self.0, _mm256_set1_ps(by)) })
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            Self(_mm256_blendv_ps(self.0, _mm256_set1_ps(NAN_F32), nan))
        }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: every CPU of this architecture has it.
        unsafe { _mm_sfence() };
    }
}
