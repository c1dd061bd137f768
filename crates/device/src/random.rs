//! Randomness from the system.

use std::fs::File;
use std::io::{self, Read};

/// Random bytes from the system's generator: the seed for memory keys, tokens and initial sequence
/// numbers.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut out = [0; N];
    File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut out))?;
    Ok(out)
}
