//! Faults of a link.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::loss::Loss;
use crate::prob::Prob;

/// Faults of a link. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Which packets are lost.
    pub loss: Loss,
    /// Uniform variation of the delay, both ways. It preserves the order.
    pub jitter_ns: u64,
    /// A packet is delayed and overtaken by later ones.
    pub reorder: Prob,
    /// The longest time that a packet is delayed, or that a copy arrives after its original.
    /// Bounded, because 24-bit sequence numbers distinguish old packets from new ones only within
    /// half the circle.
    pub reorder_ns: u64,
    /// A packet arrives twice.
    pub duplicate: Prob,
    /// A packet arrives with changed bytes.
    pub corrupt: Prob,
    /// How the bytes change.
    pub corruption: Corruption,
}

/// How a corrupted packet differs from what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Corruption {
    /// One flipped bit. An ICRC check that solves for the IP identification always detects one
    /// flip, but may miss two.
    #[default]
    OneBit,
    /// Any number of bits, or a packet cut short. Only for receivers that know the IP
    /// identification: a check of 16 bits would miss one such packet in 65,536.
    Anything,
}

/// Bytes at the start of a packet that half of all bit flips hit: headers are a small part of a
/// packet but carry most of its meaning.
const HEADER_BYTES: usize = 28;

/// How to corrupt a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    pub(crate) how: Corruption,
    /// Random bits, which decide everything else.
    pub(crate) word: u64,
}

impl Damage {
    /// The one bit to flip of a packet of `len` bytes, all equally likely.
    pub fn bit(&self, len: usize) -> usize {
        (self.word % (len as u64 * 8).max(1)) as usize
    }

    /// Changes the bytes of a packet.
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.word);
        match self.how {
            Corruption::OneBit => flip_bits(bytes, 1, &mut rng),
            Corruption::Anything if below(&mut rng, 5) == 0 => {
                bytes.truncate(below(&mut rng, bytes.len()));
            }
            Corruption::Anything => {
                let bits = if below(&mut rng, 2) == 0 { 1 } else { 2 + below(&mut rng, 39) };
                flip_bits(bytes, bits, &mut rng);
            }
        }
    }
}

fn flip_bits(bytes: &mut [u8], bits: usize, rng: &mut impl Rng) {
    let only_headers = below(rng, 2) == 0;
    let reach = if only_headers { bytes.len().min(HEADER_BYTES) } else { bytes.len() };
    for _ in 0..bits {
        let bit = below(rng, reach * 8);
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// A number below `n`; 0 if `n` is 0.
fn below(rng: &mut impl Rng, n: usize) -> usize {
    uniform(n as u64, rng) as usize
}

/// A number below `n`; 0 if `n` is 0. The bias of the multiplication is below n / 2^64.
pub(crate) fn uniform(n: u64, rng: &mut impl Rng) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}
