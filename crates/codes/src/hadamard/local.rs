//! The transform across the lines of a region, from a tensor into packets and back.
//!
//! A region is 64 lines of 64 bytes, and a column of it is 64 elements. Columns are transformed in
//! two passes of three stages, each on eight lines in registers. Between the passes, some regions
//! are in a buffer in the L1 cache; so the pass on the packets' side writes or reads pieces of
//! several lines of eight packets at a time, where going line by line would touch 64 pages per
//! region.
//!
//! `unsafe` because vectors are loaded and stored by address. Each job first checks that its slices
//! contain all lines.

#![allow(unsafe_code)]
// `k` numbers registers here, and lines at the same time.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;

use super::signs::Signs;
use crate::reduce::DataType;
use crate::simd::{Bf16, F16, F32, Format, Job, Lanes};

/// Lines of a region, and the points of a transform.
pub(super) const LINES: usize = 64;
/// Bytes of a line.
pub(super) const LINE_BYTES: usize = 64;
/// Bytes of a region.
pub(super) const REGION_BYTES: usize = LINES * LINE_BYTES;
/// Makes the transform orthonormal: one over the square root of `LINES`.
const SCALE: f32 = 0.125;
/// Regions between the two passes.
const TILE: usize = 4;
/// The most elements of a line.
const MAX_COLUMNS: usize = 32;

/// Buffer between the passes.
#[repr(align(64))]
struct Scratch(MaybeUninit<[f32; TILE * LINES * MAX_COLUMNS]>);

/// A group's regions and its packets.
pub(super) struct Group {
    pub(super) dtype: DataType,
    pub(super) seed: u64,
    /// Number of the first region, for its signs.
    pub(super) first: usize,
    /// Whether results bypass the caches.
    pub(super) stream: bool,
}

/// Encodes a group: its part of the tensor, which may end within the last region, into all of its
/// packets.
pub(super) struct Encode<'a> {
    pub(super) group: Group,
    pub(super) tensor: &'a [u8],
    pub(super) packets: &'a mut [u8],
}

/// Decodes a group.
pub(super) struct Decode<'a> {
    pub(super) group: Group,
    pub(super) packets: &'a [u8],
    pub(super) tensor: &'a mut [u8],
}

/// Panics unless the packets hold whole regions, exactly as many as the tensor needs; returns how
/// many.
fn check(tensor: usize, packets: usize) -> usize {
    let regions = packets / REGION_BYTES;
    assert_eq!(packets % REGION_BYTES, 0);
    assert_eq!(tensor.div_ceil(REGION_BYTES), regions);
    regions
}

/// Runs the code for a data type, with streaming stores if `$to` is aligned for them.
macro_rules! with_format {
    ($group:expr, $to:expr, $function:ident $arguments:tt) => {
        match ($group.dtype, $group.stream && $to.as_ptr().addr() % LINE_BYTES == 0) {
            (DataType::F32, false) => $function::<V, F32, false> $arguments,
            (DataType::F32, true) => $function::<V, F32, true> $arguments,
            (DataType::Bf16, false) => $function::<V, Bf16, false> $arguments,
            (DataType::Bf16, true) => $function::<V, Bf16, true> $arguments,
            (DataType::F16, false) => $function::<V, F16, false> $arguments,
            (DataType::F16, true) => $function::<V, F16, true> $arguments,
            (other, _) => unreachable!("a Hadamard transform of {other}"),
        }
    };
}

impl Job for Encode<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { group, tensor, packets } = self;
        with_format!(group, packets, encode(group, tensor, packets));
    }
}

impl Job for Decode<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { group, packets, tensor } = self;
        with_format!(group, tensor, decode(group, packets, tensor));
    }
}

#[inline(always)]
fn encode<V: Lanes, F: Format, const STREAM: bool>(
    group: Group,
    tensor: &[u8],
    packets: &mut [u8],
) {
    let regions = check(tensor.len(), packets.len());
    let mut tile = Tile::new(&group, regions);
    let whole = tensor.len() / REGION_BYTES;
    let packets = packets.as_mut_ptr();
    // SAFETY: jobs run on CPUs that have their vectors. `check` has seen that the packets have a
    // place for each region, and tiles end at the last whole region of the tensor.
    unsafe {
        for first in (0..whole).step_by(TILE) {
            let count = TILE.min(whole - first);
            tile.spread::<V, F>(tensor.as_ptr().add(first * REGION_BYTES), first, count);
            tile.pack::<V, F, STREAM>(packets, first, count);
        }
    }
    if whole < regions {
        let mut last = [0; REGION_BYTES];
        let rest = &tensor[whole * REGION_BYTES..];
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: as above, and `last` is a whole region.
        unsafe {
            tile.spread::<V, F>(last.as_ptr(), whole, 1);
            tile.pack::<V, F, STREAM>(packets, whole, 1);
        }
    }
    if STREAM {
        V::fence();
    }
}

#[inline(always)]
fn decode<V: Lanes, F: Format, const STREAM: bool>(
    group: Group,
    packets: &[u8],
    tensor: &mut [u8],
) {
    let regions = check(tensor.len(), packets.len());
    let mut tile = Tile::new(&group, regions);
    let whole = tensor.len() / REGION_BYTES;
    let packets = packets.as_ptr();
    // SAFETY: as in `encode`.
    unsafe {
        for first in (0..whole).step_by(TILE) {
            let count = TILE.min(whole - first);
            tile.unpack::<V, F>(packets, first, count);
            let to = tensor.as_mut_ptr().add(first * REGION_BYTES);
            tile.gather::<V, F, STREAM>(to, first, count);
        }
    }
    if whole < regions {
        let mut last = [0; REGION_BYTES];
        // SAFETY: as in `encode`.
        unsafe {
            tile.unpack::<V, F>(packets, whole, 1);
            tile.gather::<V, F, false>(last.as_mut_ptr(), whole, 1);
        }
        let rest = &mut tensor[whole * REGION_BYTES..];
        rest.copy_from_slice(&last[..rest.len()]);
    }
    if STREAM {
        V::fence();
    }
}

/// Regions being processed.
struct Tile {
    scratch: Scratch,
    seed: u64,
    /// Number of the group's first region.
    first: usize,
    /// Distance between lines of a region within the packets.
    pitch: usize,
}

impl Tile {
    #[inline(always)]
    fn new(group: &Group, regions: usize) -> Self {
        let scratch = Scratch(MaybeUninit::uninit());
        Self { scratch, seed: group.seed, first: group.first, pitch: regions * LINE_BYTES }
    }

    /// A vector's place in the scratch.
    #[inline(always)]
    fn at<F: Format>(&mut self, region: usize, line: usize, column: usize) -> *mut u8 {
        let columns = LINE_BYTES / F::SIZE;
        let at = (region * LINES + line) * columns + column;
        self.scratch.0.as_mut_ptr().cast::<f32>().wrapping_add(at).cast()
    }

    /// The signs of a region, as words for the lines 0 to 31 and 32 to 63 of each column.
    #[inline(always)]
    fn signs(&self, region: usize) -> [[u32; MAX_COLUMNS]; 2] {
        let signs = Signs::new(self.seed, (self.first + region) as u64);
        let mut words = [[0; MAX_COLUMNS]; 2];
        for (i, word) in words.as_flattened_mut().iter_mut().enumerate() {
            *word = signs.word(i as u32);
        }
        words
    }

    /// The first pass of encoding: signs, and the stages between lines that are 8, 16 and 32 apart.
    ///
    /// # Safety
    /// The CPU has the vectors; `from` has `count` regions, at most `TILE`.
    #[inline(always)]
    unsafe fn spread<V: Lanes, F: Format>(&mut self, from: *const u8, first: usize, count: usize) {
        for region in 0..count {
            let mut signs = self.signs(first + region);
            for i in 0..8 {
                for column in (0..LINE_BYTES / F::SIZE).step_by(V::LANES) {
                    // SAFETY: the caller's promise; all lines and columns are within a region.
                    unsafe {
                        let words = signs.each_ref().map(|w| V::words(&w[column..]));
                        let from = from.add(region * REGION_BYTES + column * F::SIZE);
                        let lines = eight(|k| {
                            let lanes: V = F::load(from.add((i + 8 * k) * LINE_BYTES));
                            lanes.flip(words[k / 4], 8 * (k as u32 % 4))
                        });
                        let lines = stages(lines);
                        for k in 0..8 {
                            lines[k].store_f32::<false>(self.at::<F>(region, i + 8 * k, column));
                        }
                    }
                }
                next_line(&mut signs);
            }
        }
    }

    /// The second pass of encoding: the stages between eight adjacent lines, and into the packets.
    ///
    /// # Safety
    /// `spread` has filled the tile; the packets have the regions.
    #[inline(always)]
    unsafe fn pack<V: Lanes, F: Format, const STREAM: bool>(
        &mut self,
        packets: *mut u8,
        first: usize,
        count: usize,
    ) {
        for m in 0..8 {
            // SAFETY: the caller's promise.
            let to = unsafe { packets.add(8 * m * self.pitch + first * LINE_BYTES) };
            for region in 0..count {
                for column in (0..LINE_BYTES / F::SIZE).step_by(V::LANES) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let lines = eight(|k| V::load_f32(self.at::<F>(region, 8 * m + k, column)));
                        let lines = stages(lines);
                        let to = to.add(region * LINE_BYTES + column * F::SIZE);
                        for k in 0..8 {
                            let lanes = lines[k].scale(SCALE).canonical();
                            store::<V, F, STREAM>(lanes, to.add(k * self.pitch));
                        }
                    }
                }
            }
        }
    }

    /// The first pass of decoding: out of the packets, and the stages between eight adjacent lines.
    ///
    /// # Safety
    /// The CPU has the vectors; the packets have the regions, at most `TILE`.
    #[inline(always)]
    unsafe fn unpack<V: Lanes, F: Format>(
        &mut self,
        packets: *const u8,
        first: usize,
        count: usize,
    ) {
        for m in 0..8 {
            // SAFETY: the caller's promise.
            let from = unsafe { packets.add(8 * m * self.pitch + first * LINE_BYTES) };
            for region in 0..count {
                for column in (0..LINE_BYTES / F::SIZE).step_by(V::LANES) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = from.add(region * LINE_BYTES + column * F::SIZE);
                        let lines: [V; 8] = eight(|k| F::load(from.add(k * self.pitch)));
                        let lines = stages(lines);
                        for k in 0..8 {
                            lines[k].store_f32::<false>(self.at::<F>(region, 8 * m + k, column));
                        }
                    }
                }
            }
        }
    }

    /// The second pass of decoding: the stages between lines that are 8, 16 and 32 apart, and
    /// signs.
    ///
    /// # Safety
    /// `unpack` has filled the tile; `to` has `count` regions.
    #[inline(always)]
    unsafe fn gather<V: Lanes, F: Format, const STREAM: bool>(
        &mut self,
        to: *mut u8,
        first: usize,
        count: usize,
    ) {
        for region in 0..count {
            let mut signs = self.signs(first + region);
            for i in 0..8 {
                for column in (0..LINE_BYTES / F::SIZE).step_by(V::LANES) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let words = signs.each_ref().map(|w| V::words(&w[column..]));
                        let to = to.add(region * REGION_BYTES + column * F::SIZE);
                        let lines = eight(|k| V::load_f32(self.at::<F>(region, i + 8 * k, column)));
                        let lines = stages(lines);
                        for k in 0..8 {
                            let lanes = lines[k].flip(words[k / 4], 8 * (k as u32 % 4));
                            let lanes = lanes.scale(SCALE).canonical();
                            store::<V, F, STREAM>(lanes, to.add((i + 8 * k) * LINE_BYTES));
                        }
                    }
                }
                next_line(&mut signs);
            }
        }
    }
}

/// Moves the signs of the next line to where those of this one are.
#[inline(always)]
fn next_line(signs: &mut [[u32; MAX_COLUMNS]; 2]) {
    signs.as_flattened_mut().iter_mut().for_each(|word| *word >>= 1);
}

/// Only vectors that are a whole line are streamed: half lines wait for the other half in a write
/// buffer, and too many reach memory on their own.
///
/// # Safety
/// As of [`Lanes::store_f32`].
#[inline(always)]
unsafe fn store<V: Lanes, F: Format, const STREAM: bool>(lanes: V, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if V::LANES * F::SIZE == LINE_BYTES {
            F::store::<V, STREAM>(lanes, to);
        } else {
            F::store::<V, false>(lanes, to);
        }
    }
}

/// `std::array::from_fn` that is sure to be inlined.
#[inline(always)]
fn eight<V>(mut f: impl FnMut(usize) -> V) -> [V; 8] {
    [f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)]
}

/// Three stages of the transform.
#[inline(always)]
fn stages<V: Lanes>(x: [V; 8]) -> [V; 8] {
    let [a, b, c, d, e, f, g, h] = x;
    let (a, b) = (a.add(b), a.subtract(b));
    let (c, d) = (c.add(d), c.subtract(d));
    let (e, f) = (e.add(f), e.subtract(f));
    let (g, h) = (g.add(h), g.subtract(h));
    let (a, c) = (a.add(c), a.subtract(c));
    let (b, d) = (b.add(d), b.subtract(d));
    let (e, g) = (e.add(g), e.subtract(g));
    let (f, h) = (f.add(h), f.subtract(h));
    let (a, e) = (a.add(e), a.subtract(e));
    let (b, f) = (b.add(f), b.subtract(f));
    let (c, g) = (c.add(g), c.subtract(g));
    let (d, h) = (d.add(h), d.subtract(h));
    [a, b, c, d, e, f, g, h]
}
