//! Recognisable bytes: every message, region and guard has a seed, and every byte follows from the
//! seed and its offset, so that a shifted, torn or foreign byte is detected.

use crate::hash::mix;

/// Writes the bytes of `seed` from offset `start` on.
pub fn fill_from(seed: u64, start: usize, out: &mut [u8]) {
    let mut place = start;
    let mut rest = out;
    while !rest.is_empty() {
        let word = word_at(seed, place / 8).to_le_bytes();
        let from = place % 8;
        let n = rest.len().min(8 - from);
        rest[..n].copy_from_slice(&word[from..from + n]);
        rest = &mut rest[n..];
        place += n;
    }
}

/// The bytes of a message of `len` bytes.
pub fn message(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_from(seed, 0, &mut bytes);
    bytes
}

/// The byte at one offset.
pub fn byte_at(seed: u64, place: usize) -> u8 {
    word_at(seed, place / 8).to_le_bytes()[place % 8]
}

#[inline]
fn word_at(seed: u64, index: usize) -> u64 {
    mix(seed ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// The first difference of two byte strings, with a few bytes of both, for an error message.
pub fn first_difference(expected: &[u8], actual: &[u8]) -> Option<String> {
    if expected == actual {
        return None;
    }
    let at = expected.iter().zip(actual).position(|(e, a)| e != a);
    let at = at.unwrap_or(expected.len().min(actual.len()));
    let around = |bytes: &[u8]| {
        bytes.iter().skip(at).take(8).map(|b| format!("{b:02x}")).collect::<String>()
    };
    let wrong = expected.iter().zip(actual).filter(|(e, a)| e != a).count();
    Some(format!(
        "byte {at} of {}: expected {}…, found {}… ({wrong} bytes differ)",
        expected.len(),
        around(expected),
        around(actual)
    ))
}
