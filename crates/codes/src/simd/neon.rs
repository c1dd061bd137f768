//! The vectors of aarch64, which every such CPU has.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Lanes;
use crate::half::NAN_F32;

/// Two registers, so that eight of these fill half of all.
#[derive(Clone, Copy)]
pub(super) struct Neon(float32x4_t, float32x4_t);

/// Four binary16 as `f32`. The intrinsics for it need a type that is not stable yet.
#[inline(always)]
fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: an instruction of every aarch64 CPU that touches its operands alone.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = out(vreg) wide, bits = in(vreg) bits,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// The nearest four binary16, ties to even.
#[inline(always)]
fn narrow_f16(wide: float32x4_t) -> uint16x4_t {
    let bits;
    // SAFETY: as in `widen_f16`.
    unsafe {
        asm!("fcvtn {bits:v}.4h, {wide:v}.4s", bits = out(vreg) bits, wide = in(vreg) wide,
             options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// The nearest four bfloat16, ties to even.
#[inline(always)]
fn narrow_bf16(wide: float32x4_t) -> uint16x4_t {
    // SAFETY: every aarch64 CPU has these instructions.
    unsafe {
        let bits = vreinterpretq_u32_f32(wide);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        vshrn_n_u32::<16>(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))))
    }
}

#[inline(always)]
fn map(lanes: Neon, f: impl Fn(float32x4_t) -> float32x4_t) -> Neon {
    Neon(f(lanes.0), f(lanes.1))
}

// Every aarch64 CPU has the instructions below. Loads and stores have the promise of their callers
// for addresses.

impl Lanes for Neon {
    const LANES: usize = 8;
    type Words = (uint32x4_t, uint32x4_t);

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: see above; a load of bytes needs no alignment.
        unsafe {
            let load = |at| vreinterpretq_f32_u8(vld1q_u8(from.add(at)));
            Self(load(0), load(16))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe {
            let bits = vreinterpretq_u16_u8(vld1q_u8(from));
            let widen = |half| vreinterpretq_f32_u32(vshll_n_u16::<16>(half));
            Self(widen(vget_low_u16(bits)), widen(vget_high_u16(bits)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: see above.
        unsafe {
            let bits = vreinterpretq_u16_u8(vld1q_u8(from));
            Self(widen_f16(vget_low_u16(bits)), widen_f16(vget_high_u16(bits)))
        }
    }

    #[inline(always)]
    unsafe fn store_f32<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            vst1q_u8(to, vreinterpretq_u8_f32(self.0));
            vst1q_u8(to.add(16), vreinterpretq_u8_f32(self.1));
        }
    }

    #[inline(always)]
    unsafe fn store_bf16<const STREAM: bool>(self, to: *mut u8) {
        let Self(low, high) = self.canonical();
        // SAFETY: see above.
        unsafe {
            let bits = vcombine_u16(narrow_bf16(low), narrow_bf16(high));
            vst1q_u8(to, vreinterpretq_u8_u16(bits));
        }
    }

    #[inline(always)]
    unsafe fn store_f16<const STREAM: bool>(self, to: *mut u8) {
        let Self(low, high) = self.canonical();
        // SAFETY: see above.
        unsafe {
            let bits = vcombine_u16(narrow_f16(low), narrow_f16(high));
            vst1q_u8(to, vreinterpretq_u8_u16(bits));
        }
    }

    #[inline(always)]
    unsafe fn words(from: &[u32]) -> Self::Words {
        let from = from[..Self::LANES].as_ptr();
        // SAFETY: the slice has as many words as there are lanes.
        unsafe { (vld1q_u32(from), vld1q_u32(from.add(4))) }
    }

    #[inline(always)]
    fn flip(self, words: Self::Words, bit: u32) -> Self {
        let flip = |lanes, words| {
            // SAFETY: see above.
            unsafe {
                let left = vshlq_u32(words, vdupq_n_s32(31 - bit as i32));
                let sign = vandq_u32(left, vdupq_n_u32(1 << 31));
                vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(lanes), sign))
            }
        };
        Self(flip(self.0, words.0), flip(self.1, words.1))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(vaddq_f32(self.0, other.0), vaddq_f32(self.1, other.1)) }
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(vsubq_f32(self.0, other.0), vsubq_f32(self.1, other.1)) }
    }

    #[inline(always)]
    fn scale(self, by: f32) -> Self {
        // SAFETY: see above.
        map(self, |lanes| unsafe { vmulq_f32(lanes, vdupq_n_f32(by)) })
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: see above.
        map(self, |lanes| unsafe {
            vbslq_f32(vceqq_f32(lanes, lanes), lanes, vdupq_n_f32(NAN_F32))
        })
    }

    #[inline(always)]
    fn fence() {}
}
