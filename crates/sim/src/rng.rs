//! Seeded randomness. One generator per component, so that a component's draws do not depend on
//! how often another one draws.

use bowline_link::Prob;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A seeded generator with the few draws that a simulation needs.
#[derive(Clone, Debug)]
pub struct SimRng(ChaCha8Rng);

impl SimRng {
    /// The generator of stream `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> SimRng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        SimRng(rng)
    }

    /// Any 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of the multiplication is below n / 2^64: negligible, and there is no rejection
        // loop.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high, "an empty range has no number in it");
        low + self.below((high - low).saturating_add(1))
    }

    /// Whether an event of this probability happens.
    #[inline]
    pub fn chance(&mut self, p: Prob) -> bool {
        p.happens(&mut self.0)
    }

    /// Whether an event of `percent` percent happens.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the choices.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
