//! The running hash of everything that happens in a world.

use core::hash::Hasher;

/// A 64-bit hash over a sequence of words and bytes. Not cryptographic; the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash(u64);

/// Odd constants with a balanced bit pattern, as splitmix64 has them.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const FINISH_1: u64 = 0xbf58_476d_1ce4_e5b9;
const FINISH_2: u64 = 0x94d0_49bb_1331_11eb;

impl TraceHash {
    /// The hash of nothing, in the world of `seed`.
    pub fn new(seed: u64) -> TraceHash {
        TraceHash(mix(seed))
    }

    /// Takes in a word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        // Folding the two halves of the product makes every input bit reach every output bit.
        let product = u128::from(self.0 ^ word).wrapping_mul(u128::from(MULTIPLIER));
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(MULTIPLIER);
    }

    /// Takes in bytes and their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    /// The hash so far.
    pub fn value(self) -> u64 {
        mix(self.0)
    }
}

/// A fast hash of addresses, which come from scenarios and not from an attacker.
#[derive(Default)]
pub(crate) struct AddrHasher(u64);

impl Hasher for AddrHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = mix(self.0 ^ u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.0 = mix(self.0 ^ u64::from(word));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A bijection of 64-bit words in which every input bit reaches every output bit (splitmix64).
#[inline]
pub(crate) fn mix(word: u64) -> u64 {
    let mut x = word.wrapping_add(MULTIPLIER);
    x = (x ^ (x >> 30)).wrapping_mul(FINISH_1);
    x = (x ^ (x >> 27)).wrapping_mul(FINISH_2);
    x ^ (x >> 31)
}
