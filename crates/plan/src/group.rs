//! A message to many receivers.

use crate::choose::{Axis, Goal};
use crate::completion::Completion;
use crate::error::PlanError;
use crate::scheme::Scheme;
use crate::transfer::Transfer;

/// Most receivers.
const MAX_RECEIVERS: u32 = 1 << 16;

/// How a message reaches many receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// It is sent once, and replicated in the network.
    Group,
    /// It is sent once per receiver, over the same link.
    FanOut,
}

/// How long a message takes until all receivers have it, each with independent losses.
///
/// Receivers are independent, and a repair reaches all of them: the message completes when the
/// slowest receiver is done. That holds for go-back-N, too: a sender that goes back for one
/// receiver fills the later gaps of all others.
#[derive(Clone, Debug)]
pub struct Group {
    /// For one receiver.
    law: Completion,
    receivers: u32,
}

impl Group {
    /// A message to `receivers`.
    ///
    /// # Errors
    /// If there are none, or the scheme does not fit the message.
    pub fn new(
        transfer: &Transfer,
        scheme: &Scheme,
        receivers: u32,
        spread: Spread,
    ) -> Result<Group, PlanError> {
        if !(1..=MAX_RECEIVERS).contains(&receivers) {
            let why = format!("{receivers}; give 1 to {MAX_RECEIVERS}");
            return Err(PlanError::new("receivers", why, "8"));
        }
        let transfer = match spread {
            Spread::Group => *transfer,
            Spread::FanOut => {
                let share = Axis::Bandwidth.value(transfer) / f64::from(receivers);
                Axis::Bandwidth.moved(transfer, share)?
            }
        };
        Ok(Group { law: transfer.completion(scheme)?, receivers })
    }

    /// The shortest time within which a share `q` of messages is complete, `0 < q < 1`.
    pub fn quantile_s(&self, q: f64) -> f64 {
        self.law.quantile_s(self.of_one(q))
    }

    /// Expectation in seconds.
    pub fn mean_s(&self) -> f64 {
        if self.receivers == 1 { self.law.mean_s() } else { self.mean_to(1e-5) }
    }

    /// The time to minimise, to the three digits that a drawing shows: many times faster than
    /// [`Goal::of_group`].
    pub fn sketch_s(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Mean if self.receivers == 1 => self.law.mean_s(),
            Goal::Mean => self.mean_to(1e-3),
            Goal::Quantile(q) => self.law.quantile_to(self.of_one(q), 1e-4),
        }
    }

    /// `∫ P(T > t) dt`, with finer steps where the distribution rises: the error of a step is at
    /// most its rise times its length, and that is at most `tolerance` of the longest time.
    fn mean_to(&self, tolerance: f64) -> f64 {
        const REST: f64 = 1e-8;
        let complete = |t_s: f64| libm::pow(self.law.cdf(t_s), f64::from(self.receivers));
        let low_s = self.law.least_s();
        let high_s = self.law.quantile_to(self.of_one(1.0 - REST), 1e-3);
        let limit = tolerance * high_s;
        let mut mean_s = low_s;
        let mut pieces = vec![((low_s, complete(low_s)), (high_s, complete(high_s)))];
        while let Some((from, to)) = pieces.pop() {
            let (length_s, rise) = (to.0 - from.0, to.1 - from.1);
            let middle_s = from.0 + 0.5 * length_s;
            if rise * length_s <= limit || middle_s <= from.0 || middle_s >= to.0 {
                mean_s += length_s * (1.0 - 0.5 * (from.1 + to.1));
            } else {
                let middle = (middle_s, complete(middle_s));
                pieces.extend([(from, middle), (middle, to)]);
            }
        }
        mean_s
    }

    /// The share of one receiver's messages that are complete when a share `q` of all receivers'
    /// are.
    fn of_one(&self, q: f64) -> f64 {
        libm::pow(q, 1.0 / f64::from(self.receivers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, Loss, Message};

    fn transfer() -> Transfer {
        let link = Link { bandwidth_bps: 10e9, rtt_s: 40e-3, loss: Loss::Packet(1e-3) };
        Transfer::new(link, Message::new(16 << 20)).expect("a right one")
    }

    fn mean(scheme: &Scheme, receivers: u32, spread: Spread) -> f64 {
        Group::new(&transfer(), scheme, receivers, spread).expect("it can be").mean_s()
    }

    #[test]
    fn a_group_of_one_is_a_transfer() {
        for scheme in Scheme::all() {
            let alone = transfer().completion(&scheme).expect("it can be");
            for spread in [Spread::Group, Spread::FanOut] {
                let group = Group::new(&transfer(), &scheme, 1, spread).expect("it can be");
                assert_eq!(group.mean_s(), alone.mean_s(), "{}", scheme.name());
                assert_eq!(group.quantile_s(0.9), alone.quantile_s(0.9), "{}", scheme.name());
            }
        }
    }

    #[test]
    fn more_receivers_take_longer_and_fan_out_longest() {
        for scheme in Scheme::all().iter().filter(|scheme| scheme.is_reliable()) {
            let [two, eight] = [2, 8].map(|n| mean(scheme, n, Spread::Group));
            assert!(two <= eight * 1.001, "{}: {two} and {eight}", scheme.name());
            let fan_out = mean(scheme, 8, Spread::FanOut);
            assert!(fan_out > eight, "{}: {fan_out} and {eight}", scheme.name());
        }
    }

    #[test]
    fn coding_does_not_mind_many_receivers_and_go_back_n_does() {
        let coded = mean(&Scheme::ec_mds(32, 8), 8, Spread::Group);
        let lossless = transfer().completion(&Scheme::ec_mds(32, 8)).expect("it can be").least_s();
        assert!(coded < 1.1 * lossless, "{coded} and {lossless}");
        assert!(mean(&Scheme::GoBackN, 8, Spread::Group) > 3.0 * coded);
    }

    #[test]
    fn means_are_those_of_the_quantiles_and_sketches_are_near() {
        const POINTS: u32 = 20_000;
        for scheme in Scheme::all() {
            let group = Group::new(&transfer(), &scheme, 8, Spread::Group).expect("it can be");
            let at = |point: u32| group.quantile_s((f64::from(point) + 0.5) / f64::from(POINTS));
            let by_quantiles = (0..POINTS).map(at).sum::<f64>() / f64::from(POINTS);
            let mean = group.mean_s();
            assert!((mean / by_quantiles - 1.0).abs() < 2e-4, "{}: {mean}", scheme.name());
            let near = |sketch: f64, exact: f64| (sketch / exact - 1.0).abs() < 5e-3;
            assert!(near(group.sketch_s(Goal::Mean), mean), "{}", scheme.name());
            let tail = group.sketch_s(Goal::Quantile(0.999));
            assert!(near(tail, group.quantile_s(0.999)), "{}", scheme.name());
        }
    }

    #[test]
    fn nobody_is_no_group() {
        let refused = Group::new(&transfer(), &Scheme::GoBackN, 0, Spread::Group);
        assert!(refused.is_err());
    }
}
