//! Errors that a caller can cause.

use crate::MAX_CHUNKS;

/// Why a code, a plan or a computation was refused. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// No code has this shape.
    #[error(
        "no code with {k} data and {m} parity chunks: take at least one of each, {MAX_CHUNKS} in \
         all at most, and for XOR no more parity than data"
    )]
    Shape {
        /// Data chunks asked for.
        k: usize,
        /// Parity chunks asked for.
        m: usize,
    },
    /// A slice of chunks has the wrong number of them.
    #[error("{got} {what} chunks given where the code has {expected}")]
    Count {
        /// `data`, `parity`, `source` or `missing`.
        what: &'static str,
        /// How many there have to be.
        expected: usize,
        /// How many there were.
        got: usize,
    },
    /// A data chunk number is not below k.
    #[error("data chunk {index} of a code with {k} of them")]
    Index {
        /// The number given.
        index: usize,
        /// Data chunks of the code.
        k: usize,
    },
    /// A parity chunk is shorter than a data chunk that it protects.
    #[error(
        "parity chunk {parity} has {len} bytes and protects {needed}: make parity chunks as long as \
         the longest data chunk"
    )]
    ParityTooShort {
        /// Number of the parity chunk, from 0.
        parity: usize,
        /// Its length in bytes.
        len: usize,
        /// The length that it must have at least.
        needed: usize,
    },
    /// Too many chunks are lost.
    #[error("{missing} data chunks are missing and the chunks present do not give them back")]
    Unrecoverable {
        /// Data chunks that are missing.
        missing: usize,
    },
}
