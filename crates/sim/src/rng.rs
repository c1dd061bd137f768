//! Seeded randomness. One generator per component, so that a component's draws do not depend on
//! how often another one draws.

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
        // The bias of the multiplication is below n / 2^64: invisible, and free of rejection loops.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high, "an empty range has no number in it");
        low + self.below((high - low).saturating_add(1))
    }

    /// Whether an event of this probability happens.
    #[inline]
    pub fn chance(&mut self, p: Prob) -> bool {
        // An impossible event draws nothing, so that a link without faults costs nothing.
        p.0 != 0 && (p.0 == u64::MAX || self.bits() < p.0)
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

/// A probability as a threshold on 64 random bits: comparing integers gives the same answer on
/// every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prob(u64);

impl Prob {
    /// Never.
    pub const NEVER: Prob = Prob(0);
    /// Always.
    pub const ALWAYS: Prob = Prob(u64::MAX);

    /// A probability between 0 and 1; values outside are taken as the nearest of both.
    pub fn new(p: f64) -> Prob {
        // A float to integer cast saturates, and a NaN becomes 0.
        Prob((p * 18_446_744_073_709_551_616.0) as u64)
    }

    /// As a float, for people to read.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 18_446_744_073_709_551_616.0
    }
}
