//! What memory allows: reading the data and writing the parity, without computing it.

use std::hint::black_box;

/// A way to read the chunks of a group and to write as much as its parity. Which one suits a
/// machine best shows only in the measurement.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// One chunk after the other, then the output: what the prefetchers of a CPU like.
    InTurn,
    /// All chunks side by side, the output as one goes, as a code has to.
    SideBySide,
    /// The same, and the reader asks for the data ahead of its use.
    Prefetched,
    /// The same, with stores that pass by the caches.
    Streamed,
}

/// Bytes of each chunk that are read in turn.
const STEP: usize = 256;
/// How far ahead the data is asked for.
const AHEAD: usize = 1024;

impl Way {
    pub(crate) const ALL: [Way; 4] = [Way::InTurn, Way::SideBySide, Way::Prefetched, Way::Streamed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::InTurn => "memory, in turn",
            Way::SideBySide => "memory, side by side",
            Way::Prefetched => "memory, prefetched",
            Way::Streamed => "memory, streamed",
        }
    }

    /// Reads all sources, which are as long as the output, and writes the output.
    pub(crate) fn run(self, sources: &[&[u8]], out: &mut [u8]) {
        assert!(sources.iter().all(|source| source.len() == out.len()));
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512.
            return unsafe { self.run_avx512(sources, out) };
        }
        self.run_any(sources, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn run_avx512(self, sources: &[&[u8]], out: &mut [u8]) {
        self.run_any(sources, out);
    }

    /// Compiled once for any CPU and once for one with wide vectors.
    #[inline]
    fn run_any(self, sources: &[&[u8]], out: &mut [u8]) {
        match self {
            Way::InTurn => {
                for source in sources {
                    black_box(fold(source));
                }
                black_box(out).fill(0x5a);
            }
            Way::SideBySide => side_by_side::<false, false>(sources, out),
            Way::Prefetched => side_by_side::<true, false>(sources, out),
            Way::Streamed => side_by_side::<true, true>(sources, out),
        }
    }
}

#[inline]
fn side_by_side<const PREFETCH: bool, const STREAM: bool>(sources: &[&[u8]], out: &mut [u8]) {
    let mut sum = [0; STEP / 8];
    for (i, out) in out.chunks_mut(STEP).enumerate() {
        for source in sources {
            let source = &source[i * STEP..];
            if PREFETCH {
                (0..STEP).step_by(64).for_each(|at| prefetch(source, AHEAD + at));
            }
            for (sum, word) in sum.iter_mut().zip(source[..out.len()].as_chunks::<8>().0) {
                *sum ^= u64::from_ne_bytes(*word);
            }
        }
        if STREAM {
            stream(out);
        } else {
            out.fill(0x5a);
        }
    }
    black_box(sum);
}

/// The sum of all words; bytes after the last whole word are left out.
#[inline]
fn fold(bytes: &[u8]) -> u64 {
    let mut sums = [0; STEP / 8];
    for piece in bytes.chunks(STEP) {
        for (sum, word) in sums.iter_mut().zip(piece.as_chunks::<8>().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
    }
    sums.into_iter().fold(0, |a, b| a ^ b)
}

/// Asks for the byte at an offset, which may be beyond the end.
#[inline]
fn prefetch(bytes: &[u8], offset: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, offset);
}

/// Fills a piece by stores that pass by the caches, where there are such.
#[inline]
fn stream(out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    for words in out.as_chunks_mut::<8>().0 {
        use std::arch::x86_64::_mm_stream_si64;
        // SAFETY: chunks begin at pages and pieces are multiples of 8 bytes long, so the address is
        // aligned; nobody else reads it before the thread's next fence, which a bench never needs.
        unsafe { _mm_stream_si64(words.as_mut_ptr().cast(), 0x5a) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    out.fill(0x5a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let mut bytes = vec![0; 3 * STEP + 40];
        for at in 0..bytes.len() {
            bytes[at] = 1;
            assert_ne!(fold(&bytes), 0, "{at}");
            bytes[at] = 0;
        }
    }
}
