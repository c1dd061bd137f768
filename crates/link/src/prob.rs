//! Probabilities.

use core::cmp::Ordering;
use core::fmt;

use rand::Rng;

/// 2^64, by which a probability becomes a threshold on 64 random bits.
const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// A probability: a number from 0 to 1.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Prob(f64);

impl Prob {
    /// Never.
    pub const NEVER: Prob = Prob(0.0);
    /// Always.
    pub const ALWAYS: Prob = Prob(1.0);

    /// A probability between 0 and 1. A value outside becomes the nearer of the two, and a NaN 0.
    pub fn new(p: f64) -> Prob {
        // Not `clamp`, which returns a NaN unchanged.
        Prob(if p > 0.0 { p.min(1.0) } else { 0.0 })
    }

    /// As a number.
    pub fn as_f64(self) -> f64 {
        self.0
    }

    /// Whether an event of this probability happens.
    ///
    /// Compares integers, which gives the same answer on every machine. Draws only if the outcome
    /// is open, so that leaving out an option does not shift a seed's other draws.
    #[inline]
    pub fn happens(self, rng: &mut impl Rng) -> bool {
        self.0 > 0.0 && (self.0 >= 1.0 || rng.next_u64() < (self.0 * TWO_TO_64) as u64)
    }
}

impl Eq for Prob {}

impl PartialOrd for Prob {
    fn partial_cmp(&self, other: &Prob) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Prob {
    fn cmp(&self, other: &Prob) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl fmt::Debug for Prob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Prob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
