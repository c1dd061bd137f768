//! A code of one family and shape.

use crate::chunks::{Chunks, gather, gather_mut};
use crate::matrix::Matrix;
use crate::plan::{self, Plan};
use crate::{ChunkSet, CodeError, Kernel, MAX_CHUNKS};

/// The families of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Parity i is the sum of the data chunks j with j mod m = i. Recovers one loss in each of
    /// these groups.
    Xor,
    /// Reed–Solomon. Recovers any m losses.
    Mds,
}

/// A systematic erasure code: `k` data chunks, sent as they are, and `m` parity chunks.
///
/// # Chunks
///
/// Chunks are byte slices that stay in place. Data chunk j has number j, parity chunk i has number
/// k + i. A data chunk that is shorter than others, as at the end of a message, counts as followed
/// by zeros, which are neither stored nor sent; chunks after the end are empty, and always present.
/// Parity chunks are as long as the longest data chunk; any bytes beyond that are zero.
///
/// # Use
///
/// A sender either computes all parity at once ([`encode`](Self::encode), which reads the data once
/// and is the fastest) or adds chunks as it sends them ([`update`](Self::update), better
/// [`update_run`](Self::update_run), into parity that was zeroed). A receiver asks whether the
/// chunks that have arrived are [`recoverable`](Self::recoverable), and if so computes only the
/// missing ones by a [`Plan`]. A plan depends only on which chunks are present: it can be cached
/// and used for other blocks.
#[derive(Clone, Debug)]
pub struct Code {
    k: usize,
    m: usize,
    kernel: Kernel,
    /// The parity rows; `None` for XOR, whose rows are sparse.
    matrix: Option<Matrix>,
}

impl Code {
    /// The code of a family with `k` data and `m` parity chunks, `k + m` at most [`MAX_CHUNKS`].
    pub fn new(family: Family, k: usize, m: usize) -> Result<Self, CodeError> {
        match family {
            Family::Xor => Self::xor(k, m),
            Family::Mds => Self::mds(k, m),
        }
    }

    /// The XOR code with `k` data chunks and `m` parity chunks, at most `k`.
    pub fn xor(k: usize, m: usize) -> Result<Self, CodeError> {
        check_shape(k, m)?;
        if m > k {
            return Err(CodeError::Shape { k, m });
        }
        Ok(Self { k, m, kernel: Kernel::best(), matrix: None })
    }

    /// The Reed–Solomon code with `k` data and `m` parity chunks.
    pub fn mds(k: usize, m: usize) -> Result<Self, CodeError> {
        check_shape(k, m)?;
        Ok(Self { k, m, kernel: Kernel::best(), matrix: Some(Matrix::cauchy(k, m)) })
    }

    /// The same code with another kernel: same bytes, different speed.
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        Self { kernel, ..self }
    }

    /// Number of data chunks.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of parity chunks.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Its family.
    pub fn family(&self) -> Family {
        if self.matrix.is_some() { Family::Mds } else { Family::Xor }
    }

    /// Whether all data is present or can be computed.
    pub fn recoverable(&self, present: &ChunkSet) -> bool {
        let lost = ChunkSet::first(self.k).difference(present);
        match self.matrix {
            Some(_) => {
                let all = ChunkSet::first(self.k + self.m);
                lost.is_empty() || all.intersection(present).len() >= self.k
            }
            None => plan::one_loss_a_group(&lost, present, self.k, self.m),
        }
    }

    /// Computes all parity chunks from all data chunks, overwriting the parity chunks.
    pub fn encode<D, P>(&self, data: &[D], parity: &mut [P]) -> Result<(), CodeError>
    where
        D: AsRef<[u8]>,
        P: AsMut<[u8]>,
    {
        check_count("data", self.k, data.len())?;
        check_count("parity", self.m, parity.len())?;
        let data = &gather(data);
        let parity = &mut gather_mut(parity);
        check_parity(parity, longest(data))?;
        match &self.matrix {
            Some(matrix) => self.kernel.multiply(matrix, data, parity),
            None => self.encode_groups(data, parity),
        }
        Ok(())
    }

    /// Adds data chunk `index` to all parity chunks that cover it. Once every data chunk has been
    /// added, in any order, to parity that was initially zero, the result equals that of
    /// [`encode`](Self::encode).
    pub fn update<P>(&self, index: usize, data: &[u8], parity: &mut [P]) -> Result<(), CodeError>
    where
        P: AsMut<[u8]>,
    {
        self.update_run(index, &[data], parity)
    }

    /// Adds the data chunks from `first` on, like [`update`](Self::update) for each. Parity is read
    /// and written once for all of them, which is most of the work with MDS: four at a time take
    /// less than half as long.
    pub fn update_run<D, P>(
        &self,
        first: usize,
        data: &[D],
        parity: &mut [P],
    ) -> Result<(), CodeError>
    where
        D: AsRef<[u8]>,
        P: AsMut<[u8]>,
    {
        check_count("parity", self.m, parity.len())?;
        let Some(last) = data.len().checked_sub(1) else { return Ok(()) };
        let last = first.saturating_add(last);
        if last >= self.k {
            return Err(CodeError::Index { index: last, k: self.k });
        }
        let data = &gather(data);
        let parity = &mut gather_mut(parity);
        check_parity(parity, longest(data))?;
        match &self.matrix {
            Some(matrix) => self.kernel.multiply_add(matrix, first, data, parity),
            None => {
                for (index, chunk) in (first..).zip(data) {
                    self.kernel.xor_into(parity[index % self.m], chunk);
                }
            }
        }
        Ok(())
    }

    /// How to compute the data chunks that are not present. This is where a matrix is inverted:
    /// keep the plan if the same chunks go missing again.
    pub fn plan(&self, present: &ChunkSet) -> Result<Plan, CodeError> {
        let missing = ChunkSet::first(self.k).difference(present);
        if !self.recoverable(present) {
            return Err(CodeError::Unrecoverable { missing: missing.len() });
        }
        Ok(match &self.matrix {
            Some(matrix) => Plan::mds(self.kernel, matrix, &missing, present),
            None => Plan::xor(self.kernel, self.k, self.m, &missing),
        })
    }

    /// Computes the data chunks that are not present, in place: [`plan`](Self::plan) and
    /// [`Plan::reconstruct`] at once.
    pub fn reconstruct<D, P>(
        &self,
        present: &ChunkSet,
        data: &mut [D],
        parity: &[P],
    ) -> Result<(), CodeError>
    where
        D: AsMut<[u8]>,
        P: AsRef<[u8]>,
    {
        self.plan(present)?.reconstruct(data, parity)
    }

    fn encode_groups(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        for (group, parity) in parity.iter_mut().enumerate() {
            let members: Chunks<'_> = data.iter().skip(group).step_by(self.m).copied().collect();
            self.kernel.sum(&members, parity);
        }
    }
}

fn check_shape(k: usize, m: usize) -> Result<(), CodeError> {
    let fits = k.checked_add(m).is_some_and(|chunks| chunks <= MAX_CHUNKS);
    if k == 0 || m == 0 || !fits { Err(CodeError::Shape { k, m }) } else { Ok(()) }
}

pub(crate) fn check_count(
    what: &'static str,
    expected: usize,
    got: usize,
) -> Result<(), CodeError> {
    if got == expected { Ok(()) } else { Err(CodeError::Count { what, expected, got }) }
}

fn longest(chunks: &[&[u8]]) -> usize {
    chunks.iter().map(|chunk| chunk.len()).max().unwrap_or(0)
}

fn check_parity(parity: &[&mut [u8]], needed: usize) -> Result<(), CodeError> {
    match parity.iter().position(|chunk| chunk.len() < needed) {
        None => Ok(()),
        Some(at) => Err(CodeError::ParityTooShort { parity: at, len: parity[at].len(), needed }),
    }
}
