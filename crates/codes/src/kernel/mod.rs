//! The inner loops, one set for each kind of CPU, all with the same results.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use crate::matrix::{Coefs, Matrix};

/// The most outputs that one pass over the sources computes: their sums stay in registers.
pub(crate) const MAX_ROWS: usize = 8;

/// How much of the sources is processed at a time when their outputs need several passes: it should
/// still be in the L2 cache at the next pass.
const PASS_BYTES: usize = 512 << 10;

/// A set of inner loops that this CPU can run. All of them give the same bytes.
///
/// A code uses [`Kernel::best`] by default; others are for tests and benches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Gfni(x86::Gfni),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    Scalar,
}

impl Kernel {
    /// The fastest one on this CPU, determined once.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::supported().next().unwrap_or(Self(Kind::Scalar)))
    }

    /// All that run on this CPU, fastest first.
    pub fn supported() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            x86::Gfni::detect().map(|cpu| Self(Kind::Gfni(cpu))),
            #[cfg(target_arch = "x86_64")]
            x86::Avx2::detect().map(|cpu| Self(Kind::Avx2(cpu))),
            Some(Self(Kind::Scalar)),
        ]
        .into_iter()
        .flatten()
    }

    /// Its instruction set: `gfni+avx512`, `avx2` or `scalar`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Gfni(_) => "gfni+avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            Kind::Scalar => "scalar",
        }
    }

    /// `dst ^= src` over the length of the shorter.
    #[inline]
    pub fn xor_into(self, dst: &mut [u8], src: &[u8]) {
        let len = dst.len().min(src.len());
        self.xor_all_into(&mut dst[..len], [&src[..len]]);
    }

    /// `dst ^= sum of sources`. `dst` is read and written once, for any number of sources.
    ///
    /// # Panics
    /// If they differ in length.
    #[inline]
    pub fn xor_all_into<const N: usize>(self, dst: &mut [u8], sources: [&[u8]; N]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Gfni(cpu) => cpu.xor_all_into(dst, sources),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(cpu) => cpu.xor_all_into(dst, sources),
            Kind::Scalar => scalar::xor_all_into(dst, sources),
        }
    }

    /// `out = sum of sources`, a shorter source counting as followed by zeros.
    pub(crate) fn sum(self, sources: &[&[u8]], out: &mut [u8]) {
        let mut start = 0;
        while start < out.len() {
            let end = segment_end(sources.iter().map(|s| s.len()), start, out.len());
            let mut done = 0;
            while let Some(run) = next_run(done, sources.len(), |j| sources[j].len() > start) {
                self.sum_over(&sources[run.clone()], out, start..end, done > 0);
                done = run.end;
            }
            if done == 0 {
                out[start..end].fill(0);
            }
            start = end;
        }
    }

    /// `outs = matrix * sources`, a shorter source counting as followed by zeros. Outputs may
    /// differ in length.
    pub(crate) fn multiply(self, matrix: &Matrix, sources: &[&[u8]], outs: &mut [&mut [u8]]) {
        debug_assert_eq!(matrix.columns(), sources.len());
        let end = outs.iter().map(|out| out.len()).max().unwrap_or(0);
        self.multiply_columns(matrix, 0, sources, outs, end, false);
    }

    /// `outs += columns of the matrix from first on * sources`. No output may be shorter than a
    /// source.
    pub(crate) fn multiply_add(
        self,
        matrix: &Matrix,
        first: usize,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) {
        debug_assert!(first + sources.len() <= matrix.columns());
        let end = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        self.multiply_columns(matrix, first, sources, outs, end, true);
    }

    /// The product of some columns and the sources, up to the byte `end` of each output.
    fn multiply_columns(
        self,
        matrix: &Matrix,
        first: usize,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        end: usize,
        add: bool,
    ) {
        debug_assert_eq!(matrix.rows(), outs.len());
        // Several bands read the sources several times.
        let step = match matrix.bands().len() {
            0 | 1 => end,
            _ => (PASS_BYTES / sources.len().max(1)).next_multiple_of(128),
        };
        let mut start = 0;
        while start < end {
            let lens = sources.iter().map(|s| s.len()).chain(outs.iter().map(|out| out.len()));
            let at = start..segment_end(lens, start, end.min(start + step));
            for (band, outs) in matrix.bands().iter().zip(outs.chunks_mut(MAX_ROWS)) {
                let coefs = band.coefs().skip_columns(first);
                let mut done = 0;
                while let Some(rows) = next_run(done, outs.len(), |i| outs[i].len() > start) {
                    let coefs = coefs.rows(rows.clone());
                    self.multiply_segment(coefs, sources, &mut outs[rows.clone()], at.clone(), add);
                    done = rows.end;
                }
            }
            start = at.end;
        }
    }

    /// The product over a range of bytes within which no output and no source ends.
    fn multiply_segment(
        self,
        coefs: Coefs<'_>,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        at: Range<usize>,
        add: bool,
    ) {
        let mut done = 0;
        while let Some(run) = next_run(done, sources.len(), |j| sources[j].len() > at.start) {
            let coefs = coefs.skip_columns(run.start);
            self.dot(coefs, &sources[run.clone()], outs, at.clone(), add || done > 0);
            done = run.end;
        }
        if done == 0 && !add {
            outs.iter_mut().for_each(|out| out[at.clone()].fill(0));
        }
    }

    /// `outs = coefs * sources` over the bytes `at`, which all of them have; with `add`, the
    /// product is added to what is in the outputs.
    fn dot(
        self,
        coefs: Coefs<'_>,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
        at: Range<usize>,
        add: bool,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Gfni(cpu) => cpu.dot(coefs, sources, outs, at, add),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(cpu) => cpu.dot(coefs, sources, outs, at, add),
            Kind::Scalar => scalar::dot(coefs, sources, outs, at, add),
        }
    }

    /// `out = sum of sources` over the bytes `at`, which all of them have; with `add`, the sum is
    /// added to what is in the output.
    fn sum_over(self, sources: &[&[u8]], out: &mut [u8], at: Range<usize>, add: bool) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Gfni(cpu) => cpu.sum(sources, out, at, add),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(cpu) => cpu.sum(sources, out, at, add),
            Kind::Scalar => scalar::sum(sources, out, at, add),
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `dst ^= src` over the length of the shorter, with the fastest kernel.
pub fn xor_into(dst: &mut [u8], src: &[u8]) {
    Kernel::best().xor_into(dst, src);
}

/// The first end of a chunk after `start`, at most `limit`.
fn segment_end(lens: impl Iterator<Item = usize>, start: usize, limit: usize) -> usize {
    lens.filter(|len| *len > start).fold(limit, usize::min)
}

/// The first maximal range within `from..count` whose members all fulfil the condition.
fn next_run(from: usize, count: usize, holds: impl Fn(usize) -> bool) -> Option<Range<usize>> {
    let start = (from..count).find(|i| holds(*i))?;
    let end = (start..count).find(|i| !holds(*i)).unwrap_or(count);
    Some(start..end)
}

#[cfg(test)]
mod tests;
