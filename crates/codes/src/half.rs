//! The 16-bit floating-point types, converted via `f32`, for any CPU.

/// The NaN that every NaN result is canonicalized to.
pub(crate) const NAN_F32: f32 = f32::from_bits(0x7fc0_0000);
/// The same for `f64`.
pub(crate) const NAN_F64: f64 = f64::from_bits(0x7ff8_0000_0000_0000);
/// The same for binary16.
const NAN_F16: u16 = 0x7e00;
/// The same for bfloat16.
const NAN_BF16: u16 = 0x7fc0;

/// A bfloat16 as the `f32` of the same value.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16, ties to even.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = ((bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16) as u16;
    if value.is_nan() { NAN_BF16 } else { rounded }
}

/// A binary16 as the `f32` of the same value.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let exponent = magnitude >> 10;
    let value = match exponent {
        // Subnormal: a multiple of 2^-24, exact in f32.
        0 => (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        31 => 0x7f80_0000 | magnitude << 13,
        _ => (magnitude << 13) + (112 << 23),
    };
    f32::from_bits(sign | value)
}

/// The nearest binary16, ties to even.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if value.is_nan() {
        return NAN_F16;
    } else if magnitude < 113 << 23 {
        // Below 2^-14, so a subnormal or zero. Adding 0.5 leaves the multiple of 2^-24 in the low
        // bits, rounded as additions are.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        // What rounds up to 65536 or more is infinite.
        let rounded = (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
        (rounded - (112 << 10)).min(0x7c00)
    };
    sign | rounded as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value of binary16 from its definition.
    fn value_of(bits: u16) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let exponent = i32::from(bits >> 10 & 31);
        let fraction = f64::from(bits & 0x3ff);
        sign * match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_f16_has_its_value_and_comes_back() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(value_of(bits).is_nan(), "{bits:04x}");
                assert_eq!(f32_to_f16(value), NAN_F16);
            } else {
                assert_eq!(f64::from(value), value_of(bits), "{bits:04x}");
                assert_eq!(f32_to_f16(value), bits);
            }
        }
    }

    #[test]
    fn every_bf16_comes_back() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            assert_eq!(f32_to_bf16(value), if value.is_nan() { NAN_BF16 } else { bits });
        }
    }

    #[test]
    fn rounding_is_to_nearest_and_ties_go_to_even() {
        // Between each value of a type and the next: just below, at and just above the middle.
        fn check(up_to: u16, to: fn(u16) -> f32, from: fn(f32) -> u16) {
            for bits in 0..up_to {
                let middle = (f64::from(to(bits)) + f64::from(to(bits + 1))) / 2.0;
                let middle = middle as f32;
                assert_eq!(from(middle.next_down()), bits, "{bits:04x}");
                assert_eq!(from(middle.next_up()), bits + 1, "{bits:04x}");
                assert_eq!(from(middle), bits + (bits & 1), "{bits:04x}");
                assert_eq!(from(-middle), 0x8000 | (bits + (bits & 1)), "{bits:04x}");
            }
        }
        check(0x7bff, f16_to_f32, f32_to_f16);
        check(0x7f7f, bf16_to_f32, f32_to_bf16);
    }

    #[test]
    fn what_is_too_large_is_infinite() {
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::MAX), 0x7c00);
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x7f7f_7fff)), 0x7f7f);
    }
}
