//! Which scheme to use, and where on the axes around a link the choice changes.

use crate::error::PlanError;
use crate::group::{Group, Spread};
use crate::link::{Link, Loss};
use crate::scheme::Scheme;
use crate::transfer::{Message, Transfer};

/// What to minimise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The mean completion time.
    Mean,
    /// The time within which this share of messages is complete.
    Quantile(f64),
}

/// A scheme within this share of the fastest counts as equally fast, and the simpler one is chosen:
/// "SR and EC result in similar completion times. However, due to the compute footprint […] SR is
/// preferable" (section 5.2.2).
pub const MARGIN: f64 = 0.01;

impl Goal {
    /// The time to minimise.
    pub fn of(&self, transfer: &Transfer, scheme: &Scheme) -> Result<f64, PlanError> {
        let completion = transfer.completion(scheme)?;
        Ok(match self {
            Goal::Mean => completion.mean_s(),
            Goal::Quantile(q) => completion.quantile_s(*q),
        })
    }

    /// The time to minimise for a message to many receivers.
    pub fn of_group(&self, law: &Group) -> f64 {
        match self {
            Goal::Mean => law.mean_s(),
            Goal::Quantile(q) => law.quantile_s(*q),
        }
    }
}

/// Index of the scheme to use: the first that is within [`MARGIN`] of the fastest. The caller lists
/// them in order of preference.
///
/// Takes microseconds for means, so it can be called for every message.
pub fn choose(transfer: &Transfer, schemes: &[Scheme], goal: Goal) -> Result<usize, PlanError> {
    let times: Result<Vec<f64>, PlanError> =
        schemes.iter().map(|scheme| goal.of(transfer, scheme)).collect();
    first_within_margin(&times?)
}

/// The same for a message to many receivers through a group.
///
/// # Errors
/// No receivers or schemes, or a scheme that does not fit the message.
pub fn choose_group(
    transfer: &Transfer,
    schemes: &[Scheme],
    goal: Goal,
    receivers: u32,
) -> Result<usize, PlanError> {
    let time_s = |scheme: &Scheme| {
        Ok(goal.of_group(&Group::new(transfer, scheme, receivers, Spread::Group)?))
    };
    let times: Result<Vec<f64>, PlanError> = schemes.iter().map(time_s).collect();
    first_within_margin(&times?)
}

fn first_within_margin(times: &[f64]) -> Result<usize, PlanError> {
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let found = times.iter().position(|time| *time <= best * (1.0 + MARGIN));
    found.ok_or_else(|| {
        PlanError::new("schemes", "none given; name at least one".to_owned(), "sr-nack")
    })
}

/// A parameter of a transfer that can vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Loss rate.
    Loss,
    /// Bytes of the message.
    Size,
    /// Round trip, as distance.
    Distance,
    /// Bandwidth.
    Bandwidth,
}

impl Axis {
    /// All of them.
    pub const ALL: [Axis; 4] = [Axis::Loss, Axis::Size, Axis::Distance, Axis::Bandwidth];

    /// The transfer's value on the axis: a probability, bytes, seconds of round trip, bits per
    /// second.
    pub fn value(&self, transfer: &Transfer) -> f64 {
        let link = transfer.link();
        match self {
            Axis::Loss => match link.loss {
                Loss::Packet(p) | Loss::Chunk(p) => p,
                Loss::Bursts(model) => model.any_lost(1),
            },
            Axis::Size => transfer.message().bytes as f64,
            Axis::Distance => link.rtt_s,
            Axis::Bandwidth => link.bandwidth_bps,
        }
    }

    /// The transfer with another value on the axis. Bursts keep their length.
    pub fn moved(&self, transfer: &Transfer, value: f64) -> Result<Transfer, PlanError> {
        let (mut link, mut message): (Link, Message) = (*transfer.link(), *transfer.message());
        match self {
            Axis::Loss => match &mut link.loss {
                Loss::Packet(p) | Loss::Chunk(p) => *p = value,
                Loss::Bursts(model) => {
                    let factor = value / model.any_lost(1);
                    model.to_bad = (model.to_bad * factor).min(1.0);
                    model.loss_good *= factor;
                }
            },
            Axis::Size => message.bytes = value.max(1.0).round() as u64,
            Axis::Distance => link.rtt_s = value,
            Axis::Bandwidth => link.bandwidth_bps = value,
        }
        Transfer::new(link, message)
    }
}

/// A point where another scheme becomes the one to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossover {
    /// What changes.
    pub axis: Axis,
    /// Where, in the units of [`Axis::value`].
    pub value: f64,
    /// Whether the other scheme is to be used above that value, or below it.
    pub above: bool,
    /// Index of that scheme.
    pub scheme: usize,
}

/// Search range, as a factor.
const REACH: f64 = 1e4;
const STEPS_PER_DECADE: i32 = 3;

/// The nearest crossovers on each axis, upwards and downwards.
pub fn crossovers(
    transfer: &Transfer,
    schemes: &[Scheme],
    goal: Goal,
) -> Result<Vec<Crossover>, PlanError> {
    let here = choose(transfer, schemes, goal)?;
    let mut found = Vec::new();
    for axis in Axis::ALL {
        for above in [false, true] {
            found.extend(nearest(transfer, schemes, goal, here, axis, above));
        }
    }
    Ok(found)
}

fn nearest(
    transfer: &Transfer,
    schemes: &[Scheme],
    goal: Goal,
    here: usize,
    axis: Axis,
    above: bool,
) -> Option<Crossover> {
    let start = axis.value(transfer);
    if start <= 0.0 {
        return None;
    }
    // A value that cannot be planned for ends the search.
    let at = |value: f64| choose(&axis.moved(transfer, value).ok()?, schemes, goal).ok();
    let step = libm::pow(10.0, if above { 1.0 } else { -1.0 } / f64::from(STEPS_PER_DECADE));
    let mut near = start;
    let mut far = start * step;
    while (far / start).max(start / far) <= REACH * 1.001 {
        if at(far)? != here {
            for _ in 0..10 {
                let middle = (near * far).sqrt();
                if at(middle)? == here { near = middle } else { far = middle }
            }
            return Some(Crossover { axis, value: far, above, scheme: at(far)? });
        }
        near = far;
        far *= step;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper(bytes: u64, loss: f64) -> Transfer {
        let link = Link { bandwidth_bps: 400e9, rtt_s: 25e-3, loss: Loss::Chunk(loss) };
        Transfer::new(link, Message::new(bytes)).unwrap()
    }

    const SCHEMES: [Scheme; 2] = [
        Scheme::SelectiveRepeat { rto_rtts: 1.0 },
        Scheme::Erasure(crate::Erasure {
            coding: crate::Coding::Mds,
            k: 32,
            m: 8,
            beta: 0.5,
            rto_rtts: 3.0,
        }),
    ];

    #[test]
    fn coding_is_for_losses_on_messages_shorter_than_the_link() {
        assert_eq!(choose(&paper(128 << 20, 1e-3), &SCHEMES, Goal::Mean), Ok(1));
        assert_eq!(choose(&paper(128 << 20, 1e-9), &SCHEMES, Goal::Mean), Ok(0));
        assert_eq!(choose(&paper(64 << 30, 1e-5), &SCHEMES, Goal::Mean), Ok(0));
        assert!(choose(&paper(1, 0.0), &[], Goal::Mean).is_err());
    }

    #[test]
    fn a_crossover_is_where_the_choice_changes() {
        let transfer = paper(128 << 20, 1e-3);
        let found = crossovers(&transfer, &SCHEMES, Goal::Mean).unwrap();
        assert!(found.iter().any(|c| c.axis == Axis::Loss && !c.above));
        assert!(found.iter().any(|c| c.axis == Axis::Size && c.above));
        for c in found {
            let beyond = if c.above { 1.01 } else { 0.99 };
            let there = c.axis.moved(&transfer, c.value * beyond).unwrap();
            let before = c.axis.moved(&transfer, c.value / beyond).unwrap();
            assert_eq!(choose(&there, &SCHEMES, Goal::Mean), Ok(c.scheme), "{c:?}");
            assert_eq!(choose(&before, &SCHEMES, Goal::Mean), Ok(1), "{c:?}");
        }
    }
}
