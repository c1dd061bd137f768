//! Randomness from the system: the seed of memory keys and the first packet sequence numbers.

use std::fs::File;
use std::io::Read;

use crate::Error;

/// Fills `out` from the system's generator.
pub(crate) fn fill(out: &mut [u8]) -> Result<(), Error> {
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(out))
        .map_err(|e| Error::system("read /dev/urandom", e))
}

/// A random array.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut out = [0; N];
    fill(&mut out)?;
    Ok(out)
}
