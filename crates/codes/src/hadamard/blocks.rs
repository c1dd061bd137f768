//! Transforms whole blocks, whose coefficients are distributed over packets by a stride: the layout
//! of the OptiNIC paper (section 3.2).

use super::geometry::Geometry;
use super::signs::Signs;
use crate::half::{NAN_F32, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::reduce::DataType;
use crate::simd::{Job, Lanes};

/// A group's blocks.
pub(super) struct Group<'a> {
    pub(super) dtype: DataType,
    pub(super) seed: u64,
    /// Number of the first block, for its signs.
    pub(super) first: usize,
    pub(super) geometry: Geometry,
    /// One block.
    pub(super) scratch: &'a mut [f32],
}

/// Encodes a group: its part of the tensor, which may end within the last block, into all of its
/// packets.
pub(super) struct Encode<'a> {
    pub(super) group: Group<'a>,
    pub(super) tensor: &'a [u8],
    pub(super) packets: &'a mut [u8],
}

/// Decodes a group.
pub(super) struct Decode<'a> {
    pub(super) group: Group<'a>,
    pub(super) packets: &'a [u8],
    pub(super) tensor: &'a mut [u8],
}

impl Job for Encode<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { group: Group { dtype, seed, first, geometry, scratch }, tensor, packets } = self;
        let unit = geometry.unit_bytes;
        let pitch = packets.len() / geometry.units;
        for (i, block) in tensor.chunks(geometry.region_bytes()).enumerate() {
            scratch.fill(0.0);
            read(dtype, block, scratch);
            flip(scratch, Signs::new(seed, (first + i) as u64));
            transform(scratch);
            let coefs = scratch.chunks_exact(unit / dtype.size());
            for (coefs, line) in coefs.zip(packets.chunks_exact_mut(pitch)) {
                write(dtype, coefs, &mut line[i * unit..][..unit]);
            }
        }
    }
}

impl Job for Decode<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { group: Group { dtype, seed, first, geometry, scratch }, packets, tensor } = self;
        let unit = geometry.unit_bytes;
        let pitch = packets.len() / geometry.units;
        for (i, block) in tensor.chunks_mut(geometry.region_bytes()).enumerate() {
            let coefs = scratch.chunks_exact_mut(unit / dtype.size());
            for (coefs, line) in coefs.zip(packets.chunks_exact(pitch)) {
                read(dtype, &line[i * unit..][..unit], coefs);
            }
            transform(scratch);
            flip(scratch, Signs::new(seed, (first + i) as u64));
            write(dtype, &scratch[..block.len() / dtype.size()], block);
        }
    }
}

/// Elements as `f32`, as far as there are any.
#[inline(always)]
fn read(dtype: DataType, bytes: &[u8], out: &mut [f32]) {
    let halves = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_ne_bytes(*b));
    match dtype {
        DataType::F32 => {
            let words = bytes.as_chunks::<4>().0;
            out.iter_mut().zip(words).for_each(|(x, b)| *x = f32::from_ne_bytes(*b));
        }
        DataType::Bf16 => out.iter_mut().zip(halves).for_each(|(x, b)| *x = bf16_to_f32(b)),
        DataType::F16 => out.iter_mut().zip(halves).for_each(|(x, b)| *x = f16_to_f32(b)),
        other => unreachable!("a Hadamard transform of {other}"),
    }
}

/// Numbers as elements.
#[inline(always)]
fn write(dtype: DataType, values: &[f32], out: &mut [u8]) {
    match dtype {
        DataType::F32 => {
            for (b, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *b = if x.is_nan() { NAN_F32 } else { *x }.to_ne_bytes();
            }
        }
        DataType::Bf16 => {
            let out = out.as_chunks_mut::<2>().0.iter_mut();
            out.zip(values).for_each(|(b, x)| *b = f32_to_bf16(*x).to_ne_bytes());
        }
        DataType::F16 => {
            let out = out.as_chunks_mut::<2>().0.iter_mut();
            out.zip(values).for_each(|(b, x)| *b = f32_to_f16(*x).to_ne_bytes());
        }
        other => unreachable!("a Hadamard transform of {other}"),
    }
}

/// Element e has the sign of bit e % 32 of word e / 32.
#[inline(always)]
fn flip(block: &mut [f32], signs: Signs) {
    for (i, values) in block.chunks_mut(32).enumerate() {
        let word = signs.word(i as u32);
        for (bit, x) in values.iter_mut().enumerate() {
            *x = f32::from_bits(x.to_bits() ^ (word >> bit) << 31);
        }
    }
}

/// The orthonormal transform of a block whose length is a power of two.
#[inline(always)]
fn transform(block: &mut [f32]) {
    let mut apart = 1;
    if let (sixteens, []) = block.as_chunks_mut::<16>() {
        sixteens.iter_mut().for_each(first_stages);
        apart = 16;
    }
    while apart < block.len() {
        for pair in block.chunks_exact_mut(2 * apart) {
            let (a, b) = pair.split_at_mut(apart);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        apart *= 2;
    }
    let scale = 1.0 / (block.len() as f32).sqrt();
    block.iter_mut().for_each(|x| *x *= scale);
}

/// The four stages between elements that are 1, 2, 4 and 8 apart.
#[inline(always)]
fn first_stages(x: &mut [f32; 16]) {
    for apart in [1, 2, 4, 8] {
        let y = *x;
        for (i, x) in x.iter_mut().enumerate() {
            let (a, b) = (y[i & !apart], y[i | apart]);
            *x = if i & apart == 0 { a + b } else { a - b };
        }
    }
}
