//! Scalar arithmetic, which every code path must match.

use crate::half::{NAN_F32, NAN_F64, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// An element of `N` bytes.
pub(super) trait Element<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn write(self) -> [u8; N];
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Divided by a number that is not 0.
    fn divide(self, n: u64) -> Self;
}

/// A binary16.
#[derive(Clone, Copy)]
pub(super) struct F16(u16);

/// A bfloat16.
#[derive(Clone, Copy)]
pub(super) struct Bf16(u16);

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Element<{ size_of::<$type>() }> for $type {
            #[inline(always)]
            fn read(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            #[inline(always)]
            fn write(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn divide(self, n: u64) -> Self {
                match Self::try_from(n) {
                    Ok(n) => self / n,
                    // Beyond the type's range: 0 for all but the most negative of signed numbers.
                    Err(_) => (i128::from(self) / i128::from(n)) as Self,
                }
            }
        }
    )*};
}
integers! { i8 u8 i32 u32 i64 u64 }

macro_rules! floats {
    ($($type:ident, $nan:ident;)*) => {$(
        impl Element<{ size_of::<$type>() }> for $type {
            #[inline(always)]
            fn read(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            #[inline(always)]
            fn write(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                let sum = self + other;
                if sum.is_nan() { $nan } else { sum }
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                let product = self * other;
                if product.is_nan() { $nan } else { product }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // Equal numbers have equal bits except zeros, of which the negative one is less.
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let less = if self < other { self } else { other };
                let min = if self == other { equal } else { less };
                if self.is_nan() || other.is_nan() { $nan } else { min }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let more = if self > other { self } else { other };
                let max = if self == other { equal } else { more };
                if self.is_nan() || other.is_nan() { $nan } else { max }
            }
            #[inline(always)]
            fn divide(self, n: u64) -> Self {
                let quotient = self / n as $type;
                if quotient.is_nan() { $nan } else { quotient }
            }
        }
    )*};
}
floats! {
    f32, NAN_F32;
    f64, NAN_F64;
}

macro_rules! halves {
    ($($type:ident, $to:ident, $from:ident;)*) => {$(
        impl Element<2> for $type {
            #[inline(always)]
            fn read(bytes: [u8; 2]) -> Self {
                Self(u16::from_ne_bytes(bytes))
            }
            #[inline(always)]
            fn write(self) -> [u8; 2] {
                self.0.to_ne_bytes()
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self($from($to(self.0) + $to(other.0)))
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                Self($from($to(self.0) * $to(other.0)))
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Self($from(Element::min($to(self.0), $to(other.0))))
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Self($from(Element::max($to(self.0), $to(other.0))))
            }
            #[inline(always)]
            fn divide(self, n: u64) -> Self {
                Self($from($to(self.0) / n as f32))
            }
        }
    )*};
}
halves! {
    F16, f16_to_f32, f32_to_f16;
    Bf16, bf16_to_f32, f32_to_bf16;
}
