//! Block Walsh–Hadamard transforms that spread the loss of a packet over many elements.
//!
//! A sender transforms its tensor and sends coefficients. A receiver treats lost coefficients as
//! zeros and transforms back: a lost packet then costs each of many regions a little, instead of a
//! few elements everything. The transform is orthonormal, so the energy of the error is that of the
//! lost coefficients: on average the mean squared error *is the loss rate*, with and without a
//! transform. What improves is how evenly it is spread: over patterns of loss, and over the layers
//! of a model. It is linear, so encoded tensors of one plan can be summed and decoded once.
//!
//! Elements change their signs at random before the transform, and after it on the way back.
//! Otherwise numbers of one sign would have most of their energy in one coefficient. The signs
//! depend only on the plan's seed and the position: ranks with equal seeds have equal signs.
//!
//! Two layouts exist, [`Layout::Local`] and [`Layout::Blocks`]. In both the encoded tensor is cut
//! into packets of [`Hadamard::packet_bytes`]; it is as long as the tensor, rounded up to whole
//! regions.
//!
//! `bf16` and `f16` are transformed as `f32` and rounded once on the way out, to nearest, ties to
//! even. Coefficients of 64 elements can be 8 times as large as the largest of them, which `f16`
//! may not hold. Results have the same bits with all [`Vectors`]; NaNs are
//! canonical. A NaN or an infinity spoils all elements it is transformed with.
//!
//! ```
//! use bowline_codes::hadamard::{Hadamard, Layout, distortion};
//! use bowline_codes::reduce::DataType;
//!
//! let tensor: Vec<u8> = (0..100_000).flat_map(|i| (i as f32).sin().to_ne_bytes()).collect();
//! let plan = Hadamard::new(DataType::F32, 100_000, Layout::Local { packet_bytes: 1024 }, 42)?;
//! let mut encoded = vec![0; plan.encoded_len()];
//! plan.encode(&tensor, &mut encoded);
//!
//! // Packets 7 and 300 are lost.
//! plan.erase(&mut encoded, [7, 300]);
//! let mut restored = vec![0; tensor.len()];
//! plan.decode(&encoded, &mut restored);
//! let lost = distortion(DataType::F32, &tensor, &restored, 4096)?;
//! assert!(lost.nmse < 0.01 && lost.worst < 0.05, "{lost:?}");
//! # Ok::<(), bowline_codes::hadamard::HadamardError>(())
//! ```

mod blocks;
mod distortion;
mod geometry;
mod local;
mod signs;

use std::ops::Range;

pub use distortion::{Distortion, distortion, energy};

use crate::Vectors;
use crate::reduce::DataType;
use geometry::Geometry;

/// The longest block of [`Layout::Blocks`], in elements.
pub const MAX_BLOCK: usize = 1 << 28;

/// Results of at least this many bytes bypass the caches, unless they are computed group by group.
const STREAM_BYTES: usize = 8 << 20;

/// How coefficients are computed and distributed over packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Regions of 4 KiB, which are 64 lines of 64 bytes. The transform is across lines, and a
    /// packet has one line of each of `packet_bytes / 64` consecutive regions. Regions are short,
    /// so that layers of different scale do not mix.
    Local {
        /// Bytes of a packet's payload: a multiple of 64.
        packet_bytes: usize,
    },
    /// The OptiNIC paper's: blocks of `block` elements, each transformed as a whole; a packet has
    /// `block / stride` coefficients of each of `stride` blocks, and is as long as a block.
    Blocks {
        /// Elements of a block: a power of two.
        block: usize,
        /// Blocks that share a packet: a power of two, at most `block`.
        stride: usize,
    },
}

/// Why a plan is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HadamardError {
    /// Only floating-point numbers that fit `f32` can be transformed.
    #[error("no Hadamard transform of {0}: take f32, bf16 or f16")]
    DataType(DataType),
    /// The packets cannot be divided into lines.
    #[error("packets of {0} bytes: take a multiple of 64 bytes, e.g. 4096")]
    PacketBytes(usize),
    /// The blocks cannot be transformed or distributed.
    #[error(
        "blocks of {block} elements with a stride of {stride}: take powers of two, blocks of at \
         most {MAX_BLOCK} elements and a stride of at most a block, e.g. 1024 and 64"
    )]
    Blocks {
        /// Elements asked for.
        block: usize,
        /// Stride asked for.
        stride: usize,
    },
    /// The tensor is longer than the address space.
    #[error("{0} elements are more than an address space holds")]
    TooLong(usize),
}

/// A part of a tensor that is encoded and decoded on its own, once its bytes have arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its bytes of the tensor.
    pub tensor: Range<usize>,
    /// Its bytes of the encoded tensor.
    pub encoded: Range<usize>,
}

/// A plan for tensors of one type and length.
#[derive(Clone, Debug)]
pub struct Hadamard {
    dtype: DataType,
    tensor_len: usize,
    layout: Layout,
    geometry: Geometry,
    seed: u64,
    vectors: Vectors,
}

impl Hadamard {
    /// A plan for tensors of `elements` elements. Equal seeds give equal signs, which ranks that
    /// reduce encoded tensors need.
    ///
    /// # Errors
    /// If there is no transform for the type or the layout.
    pub fn new(
        dtype: DataType,
        elements: usize,
        layout: Layout,
        seed: u64,
    ) -> Result<Self, HadamardError> {
        if !matches!(dtype, DataType::F32 | DataType::Bf16 | DataType::F16) {
            return Err(HadamardError::DataType(dtype));
        }
        let (units, unit_bytes, group_regions) = match layout {
            Layout::Local { packet_bytes } => {
                if packet_bytes == 0 || packet_bytes % local::LINE_BYTES != 0 {
                    return Err(HadamardError::PacketBytes(packet_bytes));
                }
                (local::LINES, local::LINE_BYTES, packet_bytes / local::LINE_BYTES)
            }
            Layout::Blocks { block, stride } => {
                let fits = block.is_power_of_two() && stride.is_power_of_two();
                if !fits || stride > block || block > MAX_BLOCK {
                    return Err(HadamardError::Blocks { block, stride });
                }
                (stride, block / stride * dtype.size(), stride)
            }
        };
        // A slice has at most half of the address space; an encoded tensor is up to a region
        // longer.
        let too_long = HadamardError::TooLong(elements);
        let tensor_len = elements.checked_mul(dtype.size()).ok_or(too_long)?;
        if tensor_len > isize::MAX as usize - 4 * MAX_BLOCK {
            return Err(too_long);
        }
        let regions = tensor_len.div_ceil(units * unit_bytes);
        let geometry = Geometry { regions, units, unit_bytes, group_regions };
        Ok(Self { dtype, tensor_len, layout, geometry, seed, vectors: Vectors::best() })
    }

    /// The same plan with chosen instructions, for tests and benches.
    pub fn with_vectors(self, vectors: Vectors) -> Self {
        Self { vectors, ..self }
    }

    /// Bytes of a tensor.
    pub fn tensor_len(&self) -> usize {
        self.tensor_len
    }

    /// Bytes of an encoded tensor.
    pub fn encoded_len(&self) -> usize {
        self.geometry.encoded_len()
    }

    /// Bytes of a packet. The last one may be shorter.
    pub fn packet_bytes(&self) -> usize {
        self.geometry.packet_bytes()
    }

    /// Number of packets.
    pub fn packets(&self) -> usize {
        self.geometry.packets()
    }

    /// The bytes of a packet within the encoded tensor. They are empty beyond the last packet.
    pub fn packet(&self, index: usize) -> Range<usize> {
        self.geometry.packet(index)
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.geometry.groups()
    }

    /// Where a group is.
    ///
    /// # Panics
    /// If there are fewer groups.
    pub fn group(&self, index: usize) -> Group {
        let regions = self.geometry.group(index);
        let bytes = self.geometry.region_bytes();
        let encoded = regions.start * bytes..regions.end * bytes;
        Group { tensor: encoded.start..encoded.end.min(self.tensor_len), encoded }
    }

    /// All packets in the order to send them: those of a group as far apart as possible, so that a
    /// burst of losses hits many groups a little.
    pub fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        self.geometry.turns()
    }

    /// Encodes a tensor into the layout of packets. Every byte of `encoded` is written.
    ///
    /// # Panics
    /// If a slice does not have the plan's length.
    pub fn encode(&self, tensor: &[u8], encoded: &mut [u8]) {
        self.check(tensor.len(), encoded.len());
        let stream = self.encoded_len() >= STREAM_BYTES;
        for index in 0..self.groups() {
            let group = self.group(index);
            self.encode_one(index, &tensor[group.tensor], &mut encoded[group.encoded], stream);
        }
    }

    /// Encodes one group, whose bytes the slices are. The result stays in the caches, to be sent.
    ///
    /// # Panics
    /// If there are fewer groups, or a slice has another length than [`Hadamard::group`] says.
    pub fn encode_group(&self, index: usize, tensor: &[u8], packets: &mut [u8]) {
        self.encode_one(index, tensor, packets, false);
    }

    fn encode_one(&self, index: usize, tensor: &[u8], packets: &mut [u8], stream: bool) {
        let first = self.check_group(index, tensor.len(), packets.len());
        match self.layout {
            Layout::Local { .. } => {
                let group = self.local(first, stream);
                self.vectors.run(local::Encode { group, tensor, packets });
            }
            Layout::Blocks { block, .. } => {
                let mut scratch = vec![0.0; block];
                let group = self.blocks(first, &mut scratch);
                self.vectors.run(blocks::Encode { group, tensor, packets });
            }
        }
    }

    /// Decodes a tensor. Lost packets must be zeros ([`Hadamard::erase`]).
    ///
    /// # Panics
    /// If a slice does not have the plan's length.
    pub fn decode(&self, encoded: &[u8], tensor: &mut [u8]) {
        self.check(tensor.len(), encoded.len());
        let stream = self.encoded_len() >= STREAM_BYTES;
        for index in 0..self.groups() {
            let group = self.group(index);
            self.decode_one(index, &encoded[group.encoded], &mut tensor[group.tensor], stream);
        }
    }

    /// Decodes one group, whose bytes the slices are. The result stays in the caches.
    ///
    /// # Panics
    /// If there are fewer groups, or a slice has another length than [`Hadamard::group`] says.
    pub fn decode_group(&self, index: usize, packets: &[u8], tensor: &mut [u8]) {
        self.decode_one(index, packets, tensor, false);
    }

    fn decode_one(&self, index: usize, packets: &[u8], tensor: &mut [u8], stream: bool) {
        let first = self.check_group(index, tensor.len(), packets.len());
        match self.layout {
            Layout::Local { .. } => {
                let group = self.local(first, stream);
                self.vectors.run(local::Decode { group, packets, tensor });
            }
            Layout::Blocks { block, .. } => {
                let mut scratch = vec![0.0; block];
                let group = self.blocks(first, &mut scratch);
                self.vectors.run(blocks::Decode { group, packets, tensor });
            }
        }
    }

    /// Fills packets that did not arrive with zeros. Numbers of packets that do not exist are
    /// ignored.
    ///
    /// # Panics
    /// If the slice does not have the plan's length.
    pub fn erase(&self, encoded: &mut [u8], missing: impl IntoIterator<Item = usize>) {
        self.check(self.tensor_len, encoded.len());
        for packet in missing {
            encoded[self.packet(packet)].fill(0);
        }
    }

    fn local(&self, first: usize, stream: bool) -> local::Group {
        local::Group { dtype: self.dtype, seed: self.seed, first, stream }
    }

    fn blocks<'a>(&self, first: usize, scratch: &'a mut [f32]) -> blocks::Group<'a> {
        let Self { dtype, seed, geometry, .. } = *self;
        blocks::Group { dtype, seed, first, geometry, scratch }
    }

    #[track_caller]
    fn check(&self, tensor: usize, encoded: usize) {
        assert_eq!(tensor, self.tensor_len, "a tensor of another length than planned");
        assert_eq!(encoded, self.encoded_len(), "an encoded tensor of another length than planned");
    }

    /// The number of the group's first region.
    #[track_caller]
    fn check_group(&self, index: usize, tensor: usize, packets: usize) -> usize {
        let group = self.group(index);
        assert_eq!(tensor, group.tensor.len(), "a group of another length than planned");
        assert_eq!(packets, group.encoded.len(), "an encoded group of another length than planned");
        self.geometry.group(index).start
    }
}

#[cfg(test)]
mod tests;
