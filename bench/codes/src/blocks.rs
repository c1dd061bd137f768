//! The chunks that are coded.

use bowline_bench_common::cpu_time_s;

/// Data chunks of a block.
pub(crate) const K: usize = 32;
/// Parity chunks of a block.
pub(crate) const M: usize = 8;

const PAGE: usize = 4096;

/// A block's data chunks, or its parity chunks.
type Chunks<'a> = Vec<&'a mut [u8]>;

/// Blocks of `K` data and `M` parity chunks, data and parity each in one piece of memory, as a
/// message's chunks are.
pub(crate) struct Blocks {
    chunk: usize,
    data: Pages,
    parity: Pages,
}

impl Blocks {
    /// `blocks` blocks with chunks of `chunk` bytes, filled with bytes that look random.
    pub(crate) fn new(blocks: usize, chunk: usize) -> Self {
        let mut data = Pages::new(blocks * K * chunk);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for word in data.get().chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes()[..word.len()]);
        }
        let mut parity = Pages::new(blocks * M * chunk);
        parity.get().fill(1);
        Self { chunk, data, parity }
    }

    /// Calls the function on each block's data and parity, all over again until `min_s` have
    /// passed; returns the data that it went over in GB/s of this thread's own time.
    pub(crate) fn rate(
        &mut self,
        min_s: f64,
        mut run: impl FnMut(&mut [&mut [u8]], &mut [&mut [u8]]),
    ) -> f64 {
        let bytes = self.data.len;
        let mut blocks = self.split();
        let start_s = cpu_time_s();
        let mut passes = 0;
        loop {
            for (data, parity) in &mut blocks {
                run(data, parity);
            }
            passes += 1;
            let elapsed_s = cpu_time_s() - start_s;
            if elapsed_s >= min_s {
                return (bytes * passes) as f64 / elapsed_s / 1e9;
            }
        }
    }

    /// Data and parity chunks, block by block.
    pub(crate) fn split(&mut self) -> Vec<(Chunks<'_>, Chunks<'_>)> {
        let data = self.data.get().chunks_mut(K * self.chunk);
        let parity = self.parity.get().chunks_mut(M * self.chunk);
        data.zip(parity)
            .map(|(data, parity)| {
                (data.chunks_mut(self.chunk).collect(), parity.chunks_mut(self.chunk).collect())
            })
            .collect()
    }
}

/// Zeroed memory that begins at a page, so that no run is lucky or unlucky with its alignment.
struct Pages {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + PAGE];
        let skip = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, skip, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..][..self.len]
    }
}
