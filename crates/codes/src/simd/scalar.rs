//! The vectors for any CPU: arrays.

use std::array::from_fn;

use super::Lanes;
use crate::half::{NAN_F32, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Scalar([f32; LANES]);

impl Lanes for Scalar {
    const LANES: usize = LANES;
    type Words = [u32; LANES];

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: the caller's promise; the read needs no alignment.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: as above.
        Self(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(bf16_to_f32))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: as above.
        Self(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(f16_to_f32))
    }

    #[inline(always)]
    unsafe fn store_f32<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: the caller's promise; the write needs no alignment.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_bf16<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(self.0.map(f32_to_bf16)) }
    }

    #[inline(always)]
    unsafe fn store_f16<const STREAM: bool>(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(self.0.map(f32_to_f16)) }
    }

    #[inline(always)]
    unsafe fn words(from: &[u32]) -> Self::Words {
        from_fn(|i| from[i])
    }

    #[inline(always)]
    fn flip(self, words: Self::Words, bit: u32) -> Self {
        Self(from_fn(|i| f32::from_bits(self.0[i].to_bits() ^ (words[i] >> bit) << 31)))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        Self(from_fn(|i| self.0[i] - other.0[i]))
    }

    #[inline(always)]
    fn scale(self, by: f32) -> Self {
        Self(self.0.map(|x| x * by))
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        Self(self.0.map(|x| if x.is_nan() { NAN_F32 } else { x }))
    }

    #[inline(always)]
    fn fence() {}
}
