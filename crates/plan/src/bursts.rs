//! Bursty losses: the two-state model of Gilbert and Elliott, packet by packet.

use crate::error::PlanError;

/// A good and a bad state, each with its own loss rate. The state may change before each packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// From good to bad, per packet.
    pub to_bad: f64,
    /// From bad to good, per packet: the mean burst is its inverse.
    pub to_good: f64,
    /// Loss in the good state.
    pub loss_good: f64,
    /// Loss in the bad state.
    pub loss_bad: f64,
}

/// A matrix over the two states.
type Matrix = [[f64; 2]; 2];

impl GilbertElliott {
    /// Bursts of `mean_burst` packets, all lost, that make up `rate` of all packets.
    pub fn bursts(rate: f64, mean_burst: f64) -> GilbertElliott {
        let to_good = 1.0 / mean_burst;
        // In equilibrium as many packets enter the bad state as leave it.
        let to_bad = to_good * rate / (1.0 - rate);
        GilbertElliott { to_bad, to_good, loss_good: 0.0, loss_bad: 1.0 }
    }

    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let inside = |p: f64| (0.0..=1.0).contains(&p);
        let all = [self.to_bad, self.to_good, self.loss_good, self.loss_bad];
        if !all.into_iter().all(inside) || self.to_good == 0.0 {
            let why = format!(
                "{} to bad, {} to good, losses {} and {}; give probabilities, and more than 0 to good",
                self.to_bad, self.to_good, self.loss_good, self.loss_bad
            );
            return Err(PlanError::new("bursts", why, "a rate of 1e-5 in bursts of 8"));
        }
        Ok(())
    }

    /// Long-run share of packets in the good and in the bad state.
    fn stationary(&self) -> [f64; 2] {
        let both = self.to_bad + self.to_good;
        [self.to_good / both, self.to_bad / both]
    }

    /// Transition for one packet: the state changes, then the packet is kept or lost.
    fn step(&self, kept: bool) -> Matrix {
        let outcome = |loss: f64| if kept { 1.0 - loss } else { loss };
        let (good, bad) = (outcome(self.loss_good), outcome(self.loss_bad));
        [
            [(1.0 - self.to_bad) * good, self.to_bad * bad],
            [self.to_good * good, (1.0 - self.to_good) * bad],
        ]
    }

    /// Transitions for `packets` packets: all kept, and at least one lost.
    fn unit(&self, packets: u64) -> (Matrix, Matrix) {
        let kept_one = self.step(true);
        let mut kept = [[1.0, 0.0], [0.0, 1.0]];
        // Lost at the first packet, or later: avoids the difference of near-equal numbers.
        let mut lost = [[0.0; 2]; 2];
        let any = add(kept_one, self.step(false));
        for _ in 0..packets {
            lost = add(multiply(lost, any), multiply(kept, self.step(false)));
            kept = multiply(kept, kept_one);
        }
        (kept, lost)
    }

    /// Probability that at least one of `packets` consecutive packets is lost.
    pub(crate) fn any_lost(&self, packets: u64) -> f64 {
        let (_, lost) = self.unit(packets);
        total(apply(self.stationary(), lost)).min(1.0)
    }

    /// Probability that a unit of `packets` packets is the first lost one, given that all before it
    /// were kept for long: one minus the larger eigenvalue of the matrix that keeps a unit. Over a
    /// long message, losses come in `events` of this rate.
    pub(crate) fn events(&self, packets: u64) -> f64 {
        let (kept, lost) = self.unit(packets);
        // The left eigenvector by iteration; `lost` then gives the complement without cancellation.
        let mut state = self.stationary();
        for _ in 0..200 {
            let next = apply(state, kept);
            let norm = total(next);
            if norm <= 0.0 {
                return 1.0;
            }
            state = next.map(|x| x / norm);
        }
        total(apply(state, lost)).min(1.0)
    }

    /// Probability that more than `limit` of `n` consecutive units of `packets` packets are lost:
    /// exact, by tracking state and count.
    pub(crate) fn more_lost(&self, limit: u32, n: u32, packets: u64) -> f64 {
        let (kept, lost) = self.unit(packets);
        let mut counts = vec![[0.0; 2]; limit as usize + 1];
        counts[0] = self.stationary();
        let mut failed = 0.0;
        for _ in 0..n {
            for count in (0..counts.len()).rev() {
                let here = counts[count];
                let gone = apply(here, lost);
                counts[count] = apply(here, kept);
                match counts.get_mut(count + 1) {
                    Some(next) => *next = [next[0] + gone[0], next[1] + gone[1]],
                    None => failed += total(gone),
                }
            }
        }
        failed.min(1.0)
    }

    /// Probability that some of the `m` modulo groups of `k` data and `m` parity units in a row
    /// loses two: exact, by tracking which groups have lost one. `None` for too many groups to be
    /// worth it.
    pub(crate) fn group_lost_two(&self, k: u32, m: u32, packets: u64) -> Option<f64> {
        const MOST_GROUPS: u32 = 10;
        if m > MOST_GROUPS {
            return None;
        }
        let (kept, lost) = self.unit(packets);
        let mut sets = vec![[0.0; 2]; 1 << m];
        sets[0] = self.stationary();
        let mut failed = 0.0;
        // Parity chunk i belongs to group i, as data chunk j does to group j mod m.
        for group in (0..k).map(|j| j % m).chain(0..m) {
            let bit = 1 << group;
            for set in (0..sets.len()).rev() {
                let here = sets[set];
                let gone = apply(here, lost);
                sets[set] = apply(here, kept);
                if set & bit != 0 {
                    failed += total(gone);
                } else {
                    let next = &mut sets[set | bit];
                    *next = [next[0] + gone[0], next[1] + gone[1]];
                }
            }
        }
        Some(failed.min(1.0))
    }
}

fn add(a: Matrix, b: Matrix) -> Matrix {
    [[a[0][0] + b[0][0], a[0][1] + b[0][1]], [a[1][0] + b[1][0], a[1][1] + b[1][1]]]
}

fn multiply(a: Matrix, b: Matrix) -> Matrix {
    [apply(a[0], b), apply(a[1], b)]
}

fn apply(v: [f64; 2], a: Matrix) -> [f64; 2] {
    [v[0] * a[0][0] + v[1] * a[1][0], v[0] * a[0][1] + v[1] * a[1][1]]
}

fn total(v: [f64; 2]) -> f64 {
    v[0] + v[1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::any_of;
    use crate::numeric::binomial_above;

    fn independent(p: f64) -> GilbertElliott {
        GilbertElliott { to_bad: 0.3, to_good: 0.2, loss_good: p, loss_bad: p }
    }

    fn near(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} and {b}");
    }

    #[test]
    fn states_that_lose_alike_are_independent_losses() {
        for p in [1e-7, 1e-3, 0.2] {
            let model = independent(p);
            near(model.any_lost(16), any_of(p, 16.0));
            near(model.events(16), any_of(p, 16.0));
            near(model.more_lost(8, 40, 1), binomial_above(8, 40, p));
            let group = binomial_above(1, 5, p);
            near(model.group_lost_two(32, 8, 1).unwrap(), any_of(group, 8.0));
        }
    }

    #[test]
    fn bursts_lose_what_they_say_in_fewer_events() {
        let model = GilbertElliott::bursts(1e-3, 8.0);
        near(model.any_lost(1), 1e-3);
        near(model.events(1), model.to_bad);
        assert!(model.any_lost(16) < any_of(1e-3, 16.0) / 4.0);
        // Bursts hurt interleaved parity less than consecutive parity, and MDS least.
        let xor = model.group_lost_two(32, 8, 1).unwrap();
        assert!(model.more_lost(8, 40, 1) < xor);
        assert!(xor > any_of(binomial_above(1, 5, 1e-3), 8.0));
    }
}
