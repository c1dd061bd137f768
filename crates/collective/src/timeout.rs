//! How long an operation may take, learned from earlier ones (OptiNIC, section 3.1.2).
//!
//! After each operation every rank reports how long all of its bytes would have taken: the elapsed
//! time divided by the share of bytes that arrived. The next timeout is the median over all ranks,
//! smoothed.

use std::collections::BTreeMap;

use crate::Rank;

/// Weight of the newest median in the smoothed time.
const ALPHA: f64 = 0.2;
/// The margin added to a measured time: this fraction of it, plus a constant.
const GAMMA: f64 = 0.25;
const DELTA_NS: f64 = 50_000.0;

/// How a timeout is derived from measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The smoothed median plus a margin, every time.
    #[default]
    Margin,
    /// As in the paper: only the first timeout has a margin. The timeout converges to the median,
    /// so half of all operations time out.
    Paper,
}

/// The timeout of one kind of operation.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    /// The smoothed time. With [`Rule::Paper`] it is also the timeout.
    smoothed_ns: Option<f64>,
    /// The latest time reported by each rank.
    proposals: BTreeMap<Rank, u64>,
}

impl Estimator {
    /// How long a rank would have taken to receive all bytes of an operation.
    pub fn proposal(elapsed_ns: u64, arrived_bytes: u64, expected_bytes: u64) -> u64 {
        if arrived_bytes == 0 {
            return elapsed_ns;
        }
        let whole = u128::from(elapsed_ns) * u128::from(expected_bytes) / u128::from(arrived_bytes);
        u64::try_from(whole).unwrap_or(u64::MAX)
    }

    /// Takes a rank's reported time.
    pub fn hear(&mut self, rank: Rank, proposal_ns: u64) {
        self.proposals.insert(rank, proposal_ns);
    }

    /// The timeout of the next operation. `None` for the first one, which is only measured.
    pub fn next_ns(&mut self, rule: Rule) -> Option<u64> {
        let mut times: Vec<u64> = self.proposals.values().copied().collect();
        times.sort_unstable();
        let upper = *times.get(times.len() / 2)?;
        let lower = times[(times.len() - 1) / 2];
        let median = (lower as f64 + upper as f64) / 2.0;
        let with_margin = |time: f64| time * (1.0 + GAMMA) + DELTA_NS;
        let smoothed = match (self.smoothed_ns, rule) {
            (Some(old), _) => ALPHA * median + (1.0 - ALPHA) * old,
            (None, Rule::Margin) => median,
            (None, Rule::Paper) => with_margin(median),
        };
        self.smoothed_ns = Some(smoothed);
        Some(match rule {
            Rule::Margin => with_margin(smoothed),
            Rule::Paper => smoothed,
        } as u64)
    }
}

/// Encodes a time in 16 bits, rounded down to 12 significant bits; at least 2 µs, at most 2 hours.
pub(crate) fn to_bits(ns: u64) -> u16 {
    let ns = ns.clamp(1 << 11, (1 << 43) - 1);
    let exponent = ns.ilog2() - 11;
    (exponent << 11) as u16 | (ns >> exponent) as u16 & 0x7ff
}

/// Decodes what [`to_bits`] encoded.
pub(crate) fn from_bits(bits: u16) -> u64 {
    u64::from(bits & 0x7ff | 0x800) << (bits >> 11)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const RANKS: u32 = 8;
    const BYTES: u64 = 1 << 20;

    /// How often a rule times out, and what share of the data it loses. Each rank's data arrives
    /// evenly over about 10 ms, and 1 % of ranks take three times as long.
    fn simulate(rule: Rule, jitter: f64) -> (f64, f64) {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut estimator = Estimator::default();
        let (mut fired, mut lost, mut count) = (0.0, 0.0, 0.0);
        for turn in 0..3_000 {
            let limit = estimator.next_ns(rule).unwrap_or(u64::MAX);
            for rank in 0..RANKS {
                // The sum of twelve uniform numbers is nearly normal.
                let normal = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
                let straggles = if rng.random::<f64>() < 0.01 { 3.0 } else { 1.0 };
                let takes = (10e6 * (normal * jitter).exp() * straggles) as u64;
                let elapsed = takes.min(limit);
                let arrived = (BYTES as f64 * elapsed as f64 / takes as f64) as u64;
                estimator.hear(rank, Estimator::proposal(elapsed, arrived, BYTES));
                if turn > 200 {
                    fired += f64::from(u8::from(takes > limit));
                    lost += 1.0 - arrived as f64 / BYTES as f64;
                    count += 1.0;
                }
            }
        }
        (fired / count, lost / count)
    }

    #[test]
    fn the_papers_rule_times_out_every_second_time_and_a_margin_seldom() {
        for (jitter, most_lost) in [(0.02, 0.01), (0.05, 0.01), (0.1, 0.01)] {
            let (fired, lost) = simulate(Rule::Paper, jitter);
            assert!((0.45..0.55).contains(&fired), "paper, {jitter}: fires {fired}");
            let (with_margin, less) = simulate(Rule::Margin, jitter);
            assert!(with_margin < 0.03, "margin, {jitter}: fires {with_margin}");
            assert!(less < most_lost && less < lost, "{jitter}: loses {less}, paper {lost}");
        }
    }

    #[test]
    fn the_first_timeout_has_the_margin_by_both_rules() {
        for rule in [Rule::Margin, Rule::Paper] {
            let mut estimator = Estimator::default();
            assert_eq!(estimator.next_ns(rule), None, "nothing is known");
            for (rank, ns) in [(0, 900_000), (1, 1_000_000), (2, 70_000_000)] {
                estimator.hear(rank, ns);
            }
            assert_eq!(estimator.next_ns(rule), Some(1_300_000), "one straggler does not count");
        }
    }

    #[test]
    fn what_did_not_arrive_is_counted_in() {
        assert_eq!(Estimator::proposal(1_000, 50, 100), 2_000);
        assert_eq!(Estimator::proposal(1_000, 0, 100), 1_000);
        assert_eq!(Estimator::proposal(u64::MAX, 1, u64::MAX), u64::MAX);
    }

    #[test]
    fn times_fit_into_16_bits() {
        for ns in [2_048, 2_049, 50_000, 1_000_000, 123_456_789, 7_200_000_000_000] {
            let back = from_bits(to_bits(ns));
            assert!(back <= ns && ns - back <= ns >> 11, "{ns}: {back}");
        }
        assert_eq!(from_bits(to_bits(0)), 2_048);
        assert!(from_bits(to_bits(u64::MAX)) > 8_000_000_000_000);
    }
}
