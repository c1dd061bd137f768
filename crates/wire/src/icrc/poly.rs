//! Arithmetic of polynomials over GF(2) modulo the CRC polynomial.
//!
//! A register of the reflected CRC is a polynomial of degree below 32 with the coefficient of x^0
//! in bit 31. Feeding a zero byte to a register multiplies it by x^8, so moving a difference past
//! any number of bytes, forwards or backwards, is one multiplication by a power of x.

use super::table::{self, POLY};

const ONE: u32 = 1 << 31;
const X8: u32 = ONE >> 8;

/// x^-8. Found by undoing the shift eight times: multiplication by x moves bits down, and folds in
/// the polynomial, whose own bit 31 (x^0) is set, exactly when a bit fell out at the bottom.
const X8_INVERSE: u32 = {
    let mut v = ONE;
    let mut i = 0;
    while i < 8 {
        v = if v & ONE != 0 { ((v ^ POLY) << 1) | 1 } else { v << 1 };
        i += 1;
    }
    v
};

/// x^n.
#[cfg(target_arch = "x86_64")]
pub(super) const fn x_to(n: usize) -> u32 {
    let mut v = ONE;
    let mut i = 0;
    while i < n {
        v = (v >> 1) ^ (POLY & (v & 1).wrapping_neg());
        i += 1;
    }
    v
}

/// Powers of one base: enough to make any exponent a product of a few.
pub(super) struct Powers {
    /// base^i
    low: [u32; 256],
    /// base^(256 * i)
    high: [u32; 256],
    /// base^(2^(16 + i)), for exponents beyond any datagram
    rest: [u32; 16],
}

/// Multiplication by x^(8n): a register moved past `n` zero bytes.
pub(super) static FORWARD: Powers = Powers::of(X8);
/// Multiplication by x^(-8n): a register moved back over `n` zero bytes.
pub(super) static BACKWARD: Powers = Powers::of(X8_INVERSE);

impl Powers {
    const fn of(base: u32) -> Self {
        let mut powers = Self { low: [ONE; 256], high: [ONE; 256], rest: [ONE; 16] };
        let mut i = 1;
        while i < 256 {
            powers.low[i] = mul(powers.low[i - 1], base);
            i += 1;
        }
        let base_high = mul(powers.low[255], base);
        let mut i = 1;
        while i < 256 {
            powers.high[i] = mul(powers.high[i - 1], base_high);
            i += 1;
        }
        let mut square = mul(powers.high[255], base_high);
        let mut i = 0;
        while i < 16 {
            powers.rest[i] = square;
            square = mul(square, square);
            i += 1;
        }
        powers
    }

    /// `reg` times the base to the `n`-th.
    #[inline]
    pub(super) const fn apply(&self, reg: u32, n: usize) -> u32 {
        let mut reg = mul(reg, self.low[n & 0xff]);
        if n > 0xff {
            reg = mul(reg, self.high[(n >> 8) & 0xff]);
        }
        if n > 0xffff {
            reg = self.apply_rest(reg, (n >> 16) as u64);
        }
        reg
    }

    /// The part of the exponent above 16 bits.
    #[cold]
    const fn apply_rest(&self, mut reg: u32, n: u64) -> u32 {
        let mut i = 0;
        while i < 16 {
            if (n >> i) & 1 != 0 {
                reg = mul(reg, self.rest[i]);
            }
            i += 1;
        }
        // The polynomial is primitive, so x^(2^32) = x: base^(2^32) is the base again, and bit 32
        // and up weigh as much as bit 0 and up.
        match n >> 16 {
            0 => reg,
            wrapped => self.apply(reg, wrapped as usize),
        }
    }
}

/// The product of two polynomials.
#[inline]
pub(super) const fn mul(a: u32, b: u32) -> u32 {
    // The product's 63 bits end with x^0 in bit 62; shifted by one, the upper word is a register.
    let product = carryless_mul(a, b) << 1;
    // The lower word is too high by x^32, which four zero bytes make up for.
    (product >> 32) as u32 ^ table::step_block(product as u32, &[0; 4])
}

/// The carry-less product of two words, by ordinary products: with three empty bits between any
/// two, no sum of at most eight bits reaches the next one.
#[inline]
const fn carryless_mul(a: u32, b: u32) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let mut product = 0;
    let mut place = 0;
    while place < 4 {
        let mut sum = 0;
        let mut i = 0;
        while i < 4 {
            let from_a = a as u64 & (EVERY_FOURTH << i);
            let from_b = b as u64 & (EVERY_FOURTH << ((place + 4 - i) % 4));
            sum ^= from_a.wrapping_mul(from_b);
            i += 1;
        }
        product |= sum & (EVERY_FOURTH << place);
        place += 1;
    }
    product
}
