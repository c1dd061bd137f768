//! The memory that is computed over.

use bowline_bench_common::cpu_time_s;

const PAGE: usize = 4096;

/// What is measured: called with a result and two tensors.
pub(crate) type Run = dyn Fn(&mut [u8], &[u8], &[u8]);

/// Two tensors and a result, hot or cold.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    a: Pages,
    b: Pages,
    out: Pages,
    /// How long a sample takes at least: cold data is only cold the first time.
    min_s: f64,
}

impl Place {
    /// Tensors of 256 KiB, gone over again and again: all of them are in the second-level cache.
    pub(crate) fn hot() -> Self {
        Self::new("hot, 256 KiB", 256 << 10, 0.004)
    }

    /// Tensors of 64 MiB, gone over once.
    pub(crate) fn cold() -> Self {
        Self::new("cold, 64 MiB", 64 << 20, 0.0)
    }

    fn new(name: &'static str, len: usize, min_s: f64) -> Self {
        let [mut a, mut b, mut out] = [(); 3].map(|()| Pages::new(len));
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for bytes in [a.get_mut(), b.get_mut()] {
            for word in bytes.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Numbers about 1 as f32, bf16 and, at every other place, f16.
                let word_f32 = 0x3f80_0000 | state as u32 >> 9;
                word[..4].copy_from_slice(&word_f32.to_ne_bytes());
                word[4..].copy_from_slice(&(word_f32 ^ 0x8000_0000).to_ne_bytes());
            }
        }
        out.get_mut().fill(1);
        Self { name, a, b, out, min_s }
    }

    /// Calls the function on the result and both tensors, again until a sample's time has passed;
    /// returns the tensor's bytes that it went over in GB/s of this thread's own time.
    pub(crate) fn rate(&mut self, run: &Run) -> f64 {
        let (bytes, a, b) = (self.a.len, self.a.get(), self.b.get());
        let out = self.out.get_mut();
        if self.min_s > 0.0 {
            // What ran before has left other data in the cache.
            run(out, a, b);
        }
        let start_s = cpu_time_s();
        let mut passes = 0;
        loop {
            run(out, a, b);
            passes += 1;
            let elapsed_s = cpu_time_s() - start_s;
            if elapsed_s >= self.min_s {
                return (bytes * passes) as f64 / elapsed_s / 1e9;
            }
        }
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

    fn get(&self) -> &[u8] {
        &self.bytes[self.skip..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..][..self.len]
    }
}
