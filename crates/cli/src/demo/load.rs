//! The load for each link: messages with known contents.

use std::time::Duration;

use bowline::Buffer;

/// The messages of a run.
pub(super) struct Load {
    /// Number of messages.
    pub(super) messages: u64,
    /// Length of each message.
    pub(super) message_bytes: usize,
    /// Number of messages outstanding at a time.
    pub(super) in_flight: u64,
    /// A run that takes longer stops early, and reports what it moved until then.
    pub(super) time_limit: Duration,
    seed: u64,
}

impl Load {
    pub(super) fn new(seed: u64) -> Load {
        Load {
            messages: 16,
            message_bytes: 4 << 20,
            in_flight: 4,
            time_limit: Duration::from_millis(3_000),
            seed,
        }
    }

    /// The seed of one direction's losses.
    pub(super) fn link_seed(&self, direction: u64) -> u64 {
        mix(self.seed.wrapping_add(direction << 56))
    }

    /// The offset of message `n` in the buffer.
    pub(super) fn offset(&self, n: u64) -> usize {
        n as usize * self.message_bytes
    }

    /// Memory for all messages.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.messages as usize * self.message_bytes
    }

    /// Writes message `n` into the buffer.
    pub(super) fn write(&self, n: u64, buffer: &Buffer) {
        self.for_each_chunk(n, |offset, bytes| buffer.write_at(offset, bytes));
    }

    /// The number of wrong bytes in message `n`.
    pub(super) fn wrong_bytes(&self, n: u64, buffer: &Buffer) -> u64 {
        let mut wrong = 0;
        let mut got = [0; CHUNK];
        self.for_each_chunk(n, |offset, bytes| {
            buffer.read_at(offset, &mut got);
            if got != *bytes {
                wrong += got.iter().zip(bytes).filter(|(a, b)| a != b).count() as u64;
            }
        });
        wrong
    }

    /// Calls `f` with each chunk of message `n` and its offset in the buffer.
    fn for_each_chunk(&self, n: u64, mut f: impl FnMut(usize, &[u8; CHUNK])) {
        let mut chunk = [0; CHUNK];
        let mut state = mix(self.seed ^ mix(n));
        let start = self.offset(n);
        for offset in (start..start + self.message_bytes).step_by(CHUNK) {
            for word in chunk.chunks_exact_mut(8) {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                word.copy_from_slice(&mix(state).to_le_bytes());
            }
            f(offset, &chunk);
        }
    }
}

/// Message lengths are multiples of this.
const CHUNK: usize = 4096;

/// The finalizer of SplitMix64: each input bit flips about half of the output bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_wrong_byte_is_seen() {
        let load = Load::new(3);
        let buffer = Buffer::new(load.buffer_bytes());
        load.write(5, &buffer);
        assert_eq!(load.wrong_bytes(5, &buffer), 0);
        let at = load.offset(5) + load.message_bytes - 1;
        let last = buffer.to_vec(at, 1)[0];
        buffer.write_at(at, &[!last]);
        assert_eq!(load.wrong_bytes(5, &buffer), 1);
        assert!(load.wrong_bytes(6, &buffer) > 1, "nobody has written message 6");
    }
}
