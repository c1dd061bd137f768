//! Computes missing chunks.

use std::ops::Range;

use crate::chunks::{Chunks, ChunksMut, gather, gather_mut};
use crate::code::check_count;
use crate::matrix::{Matrix, invert};
use crate::{ChunkSet, CodeError, Kernel, gf};

/// How the missing data chunks of a block are computed from those present; created by
/// [`Code::plan`](crate::Code::plan).
#[derive(Clone, Debug)]
pub struct Plan {
    kernel: Kernel,
    k: usize,
    m: usize,
    missing: Vec<usize>,
    sources: Vec<usize>,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    /// A missing chunk is the sum of these sources.
    Sums(Vec<Range<usize>>),
    /// The missing chunks are this matrix times the sources.
    Product(Matrix),
}

impl Plan {
    /// For an XOR code. Each group has at most one loss.
    pub(crate) fn xor(kernel: Kernel, k: usize, m: usize, missing: &ChunkSet) -> Self {
        let mut sources = Vec::new();
        let mut sums = Vec::new();
        for lost in missing.iter() {
            let first = sources.len();
            let group = lost % m;
            sources.extend((group..k).step_by(m).filter(|j| *j != lost));
            sources.push(k + group);
            sums.push(first..sources.len());
        }
        Self { kernel, k, m, missing: missing.iter().collect(), sources, rule: Rule::Sums(sums) }
    }

    /// For an MDS code with these parity rows. No more data is missing than parity is present.
    pub(crate) fn mds(
        kernel: Kernel,
        code: &Matrix,
        missing: &ChunkSet,
        present: &ChunkSet,
    ) -> Self {
        let (k, m) = (code.columns(), code.rows());
        let missing: Vec<usize> = missing.iter().collect();
        let lost = missing.len();
        let data: Vec<usize> = (0..k).filter(|j| present.contains(*j)).collect();
        let parity: Vec<usize> = (0..m).filter(|i| present.contains(k + i)).take(lost).collect();

        // With C the code's rows of the chosen parity: parity = C_data * data + C_lost * lost, so
        // lost = C_lost^-1 * (parity - C_data * data), and minus is plus.
        let square: Vec<u8> =
            parity.iter().flat_map(|i| missing.iter().map(|j| code.at(*i, *j))).collect();
        let inverse = invert(&square, lost).expect("square parts of a Cauchy matrix are regular");
        let rule = Matrix::from_fn(lost, k, |row, column| {
            let inverse = &inverse[row * lost..][..lost];
            match column.checked_sub(data.len()) {
                Some(parity) => inverse[parity],
                None => parity
                    .iter()
                    .zip(inverse)
                    .fold(0, |sum, (i, by)| sum ^ gf::mul(*by, code.at(*i, data[column]))),
            }
        });
        let sources = data.into_iter().chain(parity.into_iter().map(|i| k + i)).collect();
        Self { kernel, k, m, missing, sources, rule: Rule::Product(rule) }
    }

    /// The data chunks that it computes, ascending.
    pub fn missing(&self) -> &[usize] {
        &self.missing
    }

    /// The chunks that it reads, in the order that [`apply`](Self::apply) takes them; numbers from
    /// k on are parity.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Computes the missing chunks in place. `data` and `parity` are all chunks of the block:
    /// missing data chunks are written, with their length as the caller sliced them, all others are
    /// only read, and placeholders for missing parity are ignored.
    pub fn reconstruct<D, P>(&self, data: &mut [D], parity: &[P]) -> Result<(), CodeError>
    where
        D: AsMut<[u8]>,
        P: AsRef<[u8]>,
    {
        check_count("data", self.k, data.len())?;
        check_count("parity", self.m, parity.len())?;
        let mut chunks = Chunks::new();
        let mut outs = ChunksMut::new();
        let mut missing = self.missing.iter().copied().peekable();
        for (j, chunk) in data.iter_mut().enumerate() {
            if missing.next_if_eq(&j).is_some() {
                outs.push(chunk.as_mut());
                // Keeps the place; no plan reads what it computes.
                chunks.push(&[]);
            } else {
                chunks.push(chunk.as_mut());
            }
        }
        chunks.extend(parity.iter().map(AsRef::as_ref));
        let sources: Chunks<'_> = self.sources.iter().map(|chunk| chunks[*chunk]).collect();
        self.run(&sources, &mut outs)
    }

    /// Computes the missing chunks from the chunks named by [`sources`](Self::sources), in that
    /// order, into those named by [`missing`](Self::missing).
    pub fn apply<S, O>(&self, sources: &[S], missing: &mut [O]) -> Result<(), CodeError>
    where
        S: AsRef<[u8]>,
        O: AsMut<[u8]>,
    {
        check_count("source", self.sources.len(), sources.len())?;
        check_count("missing", self.missing.len(), missing.len())?;
        self.run(&gather(sources), &mut gather_mut(missing))
    }

    fn run(&self, sources: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), CodeError> {
        // Data may end early and counts as zero from there on; parity that ends early is an error.
        let needed = outs.iter().map(|out| out.len()).max().unwrap_or(0);
        for (chunk, source) in self.sources.iter().zip(sources) {
            if let Some(parity) = chunk.checked_sub(self.k)
                && source.len() < needed
            {
                return Err(CodeError::ParityTooShort { parity, len: source.len(), needed });
            }
        }
        match &self.rule {
            Rule::Sums(sums) => {
                for (sum, out) in sums.iter().zip(outs) {
                    self.kernel.sum(&sources[sum.clone()], out);
                }
            }
            Rule::Product(matrix) => self.kernel.multiply(matrix, sources, outs),
        }
        Ok(())
    }
}

/// Whether the XOR code's groups have at most one loss each where data is lost.
pub(crate) fn one_loss_a_group(lost: &ChunkSet, present: &ChunkSet, k: usize, m: usize) -> bool {
    let mut spent = ChunkSet::EMPTY;
    lost.iter().all(|j| {
        let group = j % m;
        let unspent = !spent.contains(group);
        spent.insert(group);
        unspent && present.contains(k + group)
    })
}
