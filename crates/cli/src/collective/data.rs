//! The ranks' inputs, and the outputs that they must produce.

use bowline::{DataType, Mr, Rank, ReduceOp};
use bowline_codes::reduce;

use super::args::{CollectiveArgs, Test};

/// Inputs repeat after this many elements. It divides no block size and no packet size.
const PERIOD: usize = 61;

/// One period of a rank's input. The values are small whole numbers, so their reductions are exact
/// in any order.
fn pattern(dtype: DataType, op: ReduceOp, rank: Rank) -> Vec<u8> {
    let value = |i: usize| match op {
        ReduceOp::Product => 1 + u8::from((rank as usize + i).is_multiple_of(8)),
        _ => ((rank as usize * 5 + i * 3) % 7) as u8,
    };
    (0..PERIOD).flat_map(|i| encode(dtype, value(i))).collect()
}

fn encode(dtype: DataType, value: u8) -> Vec<u8> {
    let float = f32::from(value);
    match dtype {
        DataType::F32 => float.to_ne_bytes().to_vec(),
        DataType::F64 => f64::from(value).to_ne_bytes().to_vec(),
        DataType::F16 => f16_bits(value).to_ne_bytes().to_vec(),
        DataType::Bf16 => ((float.to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
        DataType::I8 | DataType::U8 => vec![value],
        DataType::I32 | DataType::U32 => u32::from(value).to_ne_bytes().to_vec(),
        DataType::I64 | DataType::U64 => u64::from(value).to_ne_bytes().to_vec(),
    }
}

/// A number below 8 as binary16.
fn f16_bits(value: u8) -> u16 {
    if value == 0 {
        return 0;
    }
    let exponent = value.ilog2() as u16;
    (exponent + 15) << 10 | (u16::from(value) - (1 << exponent)) << (10 - exponent)
}

/// The data to write and to compare with: one period for each rank, and one for their reduction.
pub(super) struct Data {
    test: Test,
    rank: Rank,
    ranks: u32,
    root: Rank,
    element: usize,
    of_ranks: Vec<Vec<u8>>,
    reduced: Vec<u8>,
}

impl Data {
    pub(super) fn new(args: &CollectiveArgs, rank: Rank, ranks: u32) -> Data {
        let (dtype, op) = (args.dtype, args.op);
        let of_ranks: Vec<_> = (0..ranks).map(|rank| pattern(dtype, op, rank)).collect();
        let sources: Vec<_> = of_ranks.iter().map(|bytes| &bytes[..]).collect();
        let mut reduced = vec![0; PERIOD * dtype.size()];
        reduce::reduce_many(op, dtype, &mut reduced, &sources);
        reduce::finish(op, dtype, &mut reduced, ranks.into());
        let (test, root, element) = (args.test, args.root, dtype.size());
        Data { test, rank, ranks, root, element, of_ranks, reduced }
    }

    /// Writes this rank's input of `count` elements to the start of a region, or to where its block
    /// is.
    pub(super) fn fill(&self, mr: &Mr, count: usize, in_place: bool) {
        let block = count * self.element;
        let at_block = match self.test {
            Test::Allgather => in_place,
            Test::Gather => in_place && self.rank == self.root,
            _ => false,
        };
        let at = if at_block { self.rank as usize * block } else { 0 };
        let blocks = match self.test {
            Test::ReduceScatter | Test::AllToAll => self.ranks as usize,
            Test::Scatter if self.rank == self.root => self.ranks as usize,
            _ => 1,
        };
        write(mr, at, blocks * block, &self.of_ranks[self.rank as usize]);
    }

    /// The number of wrong elements in an output of `count` elements.
    pub(super) fn wrong(&self, mr: &Mr, count: usize, in_place: bool) -> u64 {
        let (rank, block) = (self.rank as usize, count * self.element);
        let is_root = self.rank == self.root;
        let compare = |at: usize, first: usize, period: &[u8]| {
            wrong(mr, at, block, first * self.element, period, self.element)
        };
        let of = |rank: usize| &self.of_ranks[rank];
        let others = || 0..self.ranks as usize;
        match self.test {
            Test::Allreduce => compare(0, 0, &self.reduced),
            Test::Reduce if is_root => compare(0, 0, &self.reduced),
            Test::ReduceScatter => {
                compare(if in_place { rank * block } else { 0 }, rank * count, &self.reduced)
            }
            Test::Allgather => others().map(|r| compare(r * block, 0, of(r))).sum(),
            Test::Gather if is_root => others().map(|r| compare(r * block, 0, of(r))).sum(),
            Test::AllToAll => others().map(|r| compare(r * block, rank * count, of(r))).sum(),
            Test::Broadcast => compare(0, 0, of(self.root as usize)),
            Test::Scatter => {
                let at = if in_place && is_root { rank * block } else { 0 };
                compare(at, rank * count, of(self.root as usize))
            }
            Test::Sendrecv => {
                let before = (self.rank + self.ranks - 1) % self.ranks;
                compare(0, 0, of(before as usize))
            }
            Test::Reduce | Test::Gather | Test::Barrier => 0,
        }
    }
}

/// Fills a range with repetitions of a period.
fn write(mr: &Mr, at: usize, len: usize, period: &[u8]) {
    let mut written = 0;
    while written < len {
        let piece = period.len().min(len - written);
        mr.write_at(at + written, &period[..piece]);
        written += piece;
    }
}

/// Counts elements that differ from the repeated period; `at` is byte `first` of the whole.
fn wrong(mr: &Mr, at: usize, len: usize, first: usize, period: &[u8], element: usize) -> u64 {
    let mut wrong = 0;
    let mut seen = 0;
    let mut piece = vec![0; period.len()];
    while seen < len {
        let start = (first + seen) % period.len();
        let expected = &period[start..period.len().min(start + len - seen)];
        let piece = &mut piece[..expected.len()];
        mr.read_at(at + seen, piece);
        if piece != expected {
            let pairs = piece.chunks(element).zip(expected.chunks(element));
            wrong += pairs.filter(|(a, b)| a != b).count() as u64;
        }
        seen += expected.len();
    }
    wrong
}
