//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), and tables of its
//! constants for the kernels.
//!
//! Why this polynomial: 2 generates the field, and ISA-L and Linux's RAID 6 use it, so parity can
//! be compared with theirs. GFNI's own multiplication is tied to 0x11b, but its affine instruction
//! multiplies by a constant in any field at the same price, as a constant's product is linear over
//! bits: [`AFFINE`] holds the 8x8 bit matrix of each constant.

/// The polynomial without its leading term.
const POLYNOMIAL: u8 = 0x1d;

/// The powers of 2, from 0 on, twice around: indexed by sums of two logarithms.
static POWERS: [u8; 2 * 255] = POWERS_AND_LOGS.0;
/// Logarithm to base 2 of each element; undefined for 0.
static LOGS: [u8; 256] = POWERS_AND_LOGS.1;

const POWERS_AND_LOGS: ([u8; 2 * 255], [u8; 256]) = {
    let (mut powers, mut logs) = ([0; 2 * 255], [0; 256]);
    let (mut power, mut exponent) = (1, 0);
    while exponent < 255 {
        powers[exponent] = power;
        powers[exponent + 255] = power;
        logs[power as usize] = exponent as u8;
        power = product(power, 2);
        exponent += 1;
    }
    (powers, logs)
};

/// The product of two elements, by table lookup, since codes and decoding plans are made for every
/// message.
#[inline]
pub(crate) fn mul(a: u8, b: u8) -> u8 {
    let log = |element: u8| usize::from(LOGS[usize::from(element)]);
    if a == 0 || b == 0 { 0 } else { POWERS[log(a) + log(b)] }
}

/// The same by shifting and adding.
const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ (if a & 0x80 != 0 { POLYNOMIAL } else { 0 });
        b >>= 1;
    }
    product
}

/// The inverse of an element other than 0 (0 for 0).
#[inline]
pub(crate) fn inverse(a: u8) -> u8 {
    // 2^255 = 1.
    if a == 0 { 0 } else { POWERS[255 - usize::from(LOGS[usize::from(a)])] }
}

/// Multiplication by each constant as the matrix operand of GF2P8AFFINEQB: byte 7 - i holds the
/// bits of the input whose sum is bit i of the product.
pub(crate) static AFFINE: [u64; 256] = affine_table();

/// Multiplication by each constant, split by halves of a byte: the products of 0..16, then those of
/// 0, 16, ..., 240. A product is the sum of one of each.
pub(crate) static NIBBLES: [[u8; 32]; 256] = nibble_table();

const fn affine_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut input = 0;
        while input < 8 {
            let product = product(c as u8, 1 << input);
            let mut output = 0;
            while output < 8 {
                if (product >> output) & 1 != 0 {
                    table[c] |= 1 << (8 * (7 - output) + input);
                }
                output += 1;
            }
            input += 1;
        }
        c += 1;
    }
    table
}

const fn nibble_table() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut half = 0;
        while half < 16 {
            table[c][half] = product(c as u8, half as u8);
            table[c][16 + half] = product(c as u8, (half as u8) << 4);
            half += 1;
        }
        c += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_looked_up_as_they_are_computed() {
        for (a, b) in (0..=255).flat_map(|a| (0..=255).map(move |b| (a, b))) {
            assert_eq!(mul(a, b), product(a, b), "{a} {b}");
        }
    }

    #[test]
    fn every_element_but_zero_has_its_inverse() {
        assert_eq!(inverse(0), 0);
        for a in 1..=255 {
            assert_eq!(mul(a, inverse(a)), 1, "{a}");
        }
    }

    #[test]
    fn two_generates_the_field() {
        let mut power = 1;
        for exponent in 1..=255 {
            power = mul(power, 2);
            assert_eq!(power == 1, exponent == 255);
        }
    }

    #[test]
    fn tables_multiply() {
        for c in 0..=255u8 {
            for x in 0..=255u8 {
                let halves = &NIBBLES[usize::from(c)];
                let by_halves = halves[usize::from(x & 15)] ^ halves[16 + usize::from(x >> 4)];
                assert_eq!(by_halves, mul(c, x));
                let bits = AFFINE[usize::from(c)].to_be_bytes();
                let by_bits =
                    (0..8).fold(0, |y, i| y | (((bits[i] & x).count_ones() as u8 & 1) << i));
                assert_eq!(by_bits, mul(c, x));
            }
        }
    }
}
