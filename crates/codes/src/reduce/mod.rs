//! Reductions over tensors given as bytes: sums, products, minima, maxima and averages.
//!
//! Slices may begin at any address. Elements are in the byte order of this machine.
//!
//! A result has the same bits on every CPU, whichever instructions compute it:
//!
//! - Integers wrap.
//! - `f16` and `bf16` are converted to `f32`, combined, and rounded to nearest, ties to even, at
//!   *each* step, also where [`reduce_many`] takes several steps at once.
//! - A result that is not a number is the type's canonical quiet NaN, whatever its operands were
//!   (0x7fc00000 for `f32`). What is only copied, as the one source of `reduce_many`, keeps its
//!   bits.
//! - The minimum or maximum of a NaN and anything else is NaN. -0 is less than +0.
//!
//! ```
//! use bowline_codes::reduce::{self, DataType, ReduceOp};
//!
//! let ranks = [[1.0f32, 5.0], [2.0, 7.0], [6.0, 0.0]].map(|r| r.map(f32::to_ne_bytes));
//! let srcs = ranks.each_ref().map(|rank| rank.as_flattened());
//! let mut mean = [0; 8];
//! reduce::reduce_many(ReduceOp::Average, DataType::F32, &mut mean, &srcs);
//! reduce::finish(ReduceOp::Average, DataType::F32, &mut mean, 3);
//! assert_eq!(mean, *[3.0f32, 4.0].map(f32::to_ne_bytes).as_flattened());
//! ```

mod element;
mod loops;
mod types;

use std::ops::Range;

pub use types::{DataType, ReduceOp, UnknownName};

use crate::Vectors;
use loops::{Combine, CombineInto, Divide};

/// How much of a result [`reduce_many`] computes from all sources at a time: it stays in the L1
/// cache meanwhile.
const TILE_BYTES: usize = 4096;

/// `acc = acc op src`, element by element.
///
/// # Panics
/// If the slices differ in length, or end in the middle of an element.
pub fn reduce(op: ReduceOp, dtype: DataType, acc: &mut [u8], src: &[u8]) {
    Vectors::best().reduce(op, dtype, acc, src);
}

/// `dst = a op b`, element by element.
///
/// # Panics
/// If the slices differ in length, or end in the middle of an element.
pub fn reduce_into(op: ReduceOp, dtype: DataType, dst: &mut [u8], a: &[u8], b: &[u8]) {
    Vectors::best().reduce_into(op, dtype, dst, a, b);
}

/// `dst = srcs[0] op srcs[1] op …`, from left to right: the same bits as by [`reduce_into`] of the
/// first two and [`reduce`] of each further one, in one pass over `dst`.
///
/// # Panics
/// If there is no source, if a source and `dst` differ in length, or if they end in the middle of
/// an element.
pub fn reduce_many(op: ReduceOp, dtype: DataType, dst: &mut [u8], srcs: &[&[u8]]) {
    Vectors::best().reduce_many(op, dtype, dst, srcs);
}

/// Divides every element by `n`. Floating-point numbers are rounded to nearest, ties to even;
/// integers toward zero. Division by 1 keeps all bits.
///
/// # Panics
/// If `n` is 0, or the slice ends in the middle of an element.
pub fn divide(dtype: DataType, buf: &mut [u8], n: u64) {
    Vectors::best().divide(dtype, buf, n);
}

/// Divides each range of elements by its own number, to average by the count of what arrived.
/// Elements outside all ranges stay as they are.
///
/// # Panics
/// If a number is 0, a range reaches beyond the slice, or the slice ends in the middle of an
/// element.
pub fn divide_ranges(
    dtype: DataType,
    buf: &mut [u8],
    counts: impl IntoIterator<Item = (Range<usize>, u64)>,
) {
    check(dtype, buf.len(), buf.len());
    let size = dtype.size();
    for (elements, n) in counts {
        divide(dtype, &mut buf[elements.start * size..elements.end * size], n);
    }
}

/// Finishes a reduction over `n` ranks: an average is divided by `n`.
///
/// # Panics
/// As [`divide`], if the operation is an average.
pub fn finish(op: ReduceOp, dtype: DataType, buf: &mut [u8], n: u64) {
    if op == ReduceOp::Average {
        divide(dtype, buf, n);
    }
}

/// The same with chosen instructions, for tests and benches.
impl Vectors {
    /// See [`reduce()`].
    pub fn reduce(self, op: ReduceOp, dtype: DataType, acc: &mut [u8], src: &[u8]) {
        check(dtype, acc.len(), src.len());
        self.run(Combine { op, dtype, acc, src });
    }

    /// See [`reduce_into`].
    pub fn reduce_into(self, op: ReduceOp, dtype: DataType, dst: &mut [u8], a: &[u8], b: &[u8]) {
        check(dtype, dst.len(), a.len());
        check(dtype, dst.len(), b.len());
        self.run(CombineInto { op, dtype, dst, a, b });
    }

    /// See [`reduce_many`].
    pub fn reduce_many(self, op: ReduceOp, dtype: DataType, dst: &mut [u8], srcs: &[&[u8]]) {
        assert!(!srcs.is_empty(), "reduce_many: no sources; give at least one");
        for src in srcs {
            check(dtype, dst.len(), src.len());
        }
        let [first, second, rest @ ..] = srcs else {
            return dst.copy_from_slice(srcs[0]);
        };
        for (i, tile) in dst.chunks_mut(TILE_BYTES).enumerate() {
            let at = i * TILE_BYTES..i * TILE_BYTES + tile.len();
            self.reduce_into(op, dtype, tile, &first[at.clone()], &second[at.clone()]);
            for src in rest {
                self.reduce(op, dtype, tile, &src[at.clone()]);
            }
        }
    }

    /// See [`divide`].
    pub fn divide(self, dtype: DataType, buf: &mut [u8], n: u64) {
        assert!(n > 0, "divide: an average over 0 ranks");
        check(dtype, buf.len(), buf.len());
        if n > 1 {
            self.run(Divide { dtype, buf, n });
        }
    }
}

/// Panics unless both slices are the same number of whole elements.
#[track_caller]
fn check(dtype: DataType, dst: usize, src: usize) {
    assert_eq!(dst, src, "a reduction of slices of different length");
    let size = dtype.size();
    assert_eq!(dst % size, 0, "a slice of {dst} bytes ends in the middle of an element of {dtype}");
}

#[cfg(test)]
mod tests;
