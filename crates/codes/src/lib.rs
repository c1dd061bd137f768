//! Erasure codes over chunks that stay in place: XOR parity and Reed–Solomon.
//!
//! A [`Code`] turns k data chunks into m parity chunks, at once or as the data is sent, tells
//! whether the chunks that arrived suffice, and computes only the missing ones, in place. Chunks
//! are slices of the caller's memory: nothing is gathered or copied. The inner loops exist for GFNI
//! with AVX-512, for AVX2 and for any CPU ([`Kernel`]); they are chosen once at run time and give
//! the same bytes.
//!
//! [`reduce`] combines tensors element by element, and [`hadamard`] spreads the loss of their
//! packets over many elements. Their loops exist for AVX-512, AVX2, NEON and any CPU ([`Vectors`]),
//! and give the same bits.
//!
//! This crate only computes: no IO, no clock, no threads. It allocates when a code or a plan is
//! created, never when one is used; blocks of [`hadamard::Layout::Blocks`] are the exception.
//!
//! ```
//! use bowline_codes::{ChunkSet, Code};
//!
//! // A message in chunks of 4 bytes; the last one is shorter.
//! let mut message = *b"never trust a lossy link";
//! let message = &mut message[..22];
//! let code = Code::mds(6, 2)?;
//! let mut parity = [[0; 4]; 2];
//!
//! // The sender adds each chunk to the parity as it sends it.
//! for (j, chunk) in message.chunks(4).enumerate() {
//!     code.update(j, chunk, &mut parity)?;
//! }
//!
//! // Chunks 2 and 5 are lost on the way.
//! message[8..12].fill(0);
//! message[20..].fill(0);
//! let present = ChunkSet::from_iter([0, 1, 3, 4, 6, 7]);
//! assert!(code.recoverable(&present));
//!
//! let mut chunks: Vec<&mut [u8]> = message.chunks_mut(4).collect();
//! code.reconstruct(&present, &mut chunks, &parity)?;
//! assert_eq!(message, b"never trust a lossy li");
//! # Ok::<(), bowline_codes::CodeError>(())
//! ```

#![deny(unsafe_code)]

mod chunk_set;
mod chunks;
mod code;
mod error;
mod gf;
pub mod hadamard;
mod half;
mod kernel;
mod matrix;
mod plan;
pub mod reduce;
mod simd;

pub use chunk_set::ChunkSet;
pub use code::{Code, Family};
pub use error::CodeError;
pub use kernel::{Kernel, xor_into};
pub use plan::Plan;
pub use simd::Vectors;

/// Most chunks of a block, data and parity together: one for each element of the field.
pub const MAX_CHUNKS: usize = 256;
