//! Chooses the scheme that the planner prefers, for each message anew.
//!
//! The connection knows its round trip, its rate and its recent losses; the planner's models tell
//! how long each of its schemes would take for a message of this size on such a link. The shortest
//! mean wins. A scheme in use stays until another is better by a margin: estimates fluctuate, and
//! differences within their error are not worth a change.

use std::collections::BTreeMap;

use bowline_plan::{Goal, Link, Loss, MARGIN, Message, Transfer};

use super::choice::{Choice, ChoiceCx, Chooser, Why};
use super::{Scheme, SchemeReceiver, SchemeSender, SelectiveRepeat};
use crate::reliable::Shape;

/// How much faster another scheme must be to replace the one in use.
const HYSTERESIS: f64 = 0.05;
/// Estimates that are cached: recent links and sizes.
const MAX_CACHED: usize = 512;
/// Resolution of the cache: steps per doubling of size, round trip and bandwidth, and of loss.
const STEPS_PER_DOUBLING: f64 = 4.0;
/// Losses below this make no difference to any message.
const LEAST_LOSS: f64 = 1e-12;

/// Chooses, for each message, the scheme that the planner expects to be fastest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Scheme for Auto {
    fn name(&self) -> String {
        "auto".to_owned()
    }

    fn uses_parity(&self) -> bool {
        // It may choose a scheme that does.
        true
    }

    fn chooser(&self) -> Option<Box<dyn Chooser>> {
        Some(Box::new(Planner::default()))
    }

    /// Used if there is no other scheme to choose.
    fn sender(&self, shape: &Shape) -> Box<dyn SchemeSender> {
        SelectiveRepeat::with_nack().sender(shape)
    }

    fn receiver(&self, shape: &Shape) -> Box<dyn SchemeReceiver> {
        SelectiveRepeat::with_nack().receiver(shape)
    }
}

/// A message and a link, at the cache's resolution.
type Class = [i32; 4];

#[derive(Default)]
struct Planner {
    /// Mean duration of each scheme, in seconds.
    expected: BTreeMap<Class, Vec<Option<f64>>>,
    /// The scheme in use for messages of a size.
    in_use: BTreeMap<i32, usize>,
}

impl Chooser for Planner {
    fn choose(&mut self, cx: &ChoiceCx<'_>) -> Choice {
        let (Some(rtt_ns), Some(bandwidth_bps)) = (cx.path.rtt_ns, cx.path.bandwidth_bps) else {
            return unknown(cx);
        };
        let loss = cx.path.packet_loss.max(LEAST_LOSS);
        let size = step(cx.shape.len().max(1) as f64);
        let class = [size, step(rtt_ns.max(1) as f64), step(bandwidth_bps.max(1.0)), step(loss)];
        if self.expected.len() >= MAX_CACHED && !self.expected.contains_key(&class) {
            self.expected.clear();
        }
        let expected = self.expected.entry(class).or_insert_with(|| {
            let link = Link {
                bandwidth_bps: bandwidth_bps.max(1.0),
                rtt_s: rtt_ns.max(1) as f64 / 1e9,
                loss: Loss::Packet(loss),
            };
            expect(cx, link, rtt_ns.max(1))
        });
        let in_use = self.in_use.get(&size).copied();
        let Some((scheme, why)) = pick(expected, in_use) else { return unknown(cx) };
        self.in_use.insert(size, scheme);
        Choice { scheme, why, expected_s: expected.clone() }
    }
}

/// Without data, the connection's first scheme.
fn unknown(cx: &ChoiceCx<'_>) -> Choice {
    let scheme = cx.schemes.iter().position(|scheme| scheme.chooser().is_none());
    let expected_s = vec![None; cx.schemes.len()];
    Choice { scheme: scheme.unwrap_or(usize::MAX), why: Why::Unknown, expected_s }
}

/// On a logarithmic scale.
fn step(value: f64) -> i32 {
    (value.log2() * STEPS_PER_DOUBLING).round() as i32
}

/// Mean completion time of each scheme that has a model.
fn expect(cx: &ChoiceCx<'_>, link: Link, rtt_ns: u64) -> Vec<Option<f64>> {
    let mtu_bytes = u64::from(cx.shape.mtu());
    let bytes = cx.shape.len().max(1);
    // A message shorter than a chunk is a chunk of its own length.
    let chunk_bytes = u64::from(cx.shape.chunk_bytes()).min(bytes.next_multiple_of(mtu_bytes));
    let transfer = Transfer::new(link, Message { bytes, chunk_bytes, mtu_bytes });
    let mean = |scheme: &dyn Scheme| {
        let model = scheme.model(cx.shape, rtt_ns)?;
        Goal::Mean.of(transfer.as_ref().ok()?, &model).ok()
    };
    cx.schemes.iter().map(|scheme| mean(scheme.as_ref())).collect()
}

/// The scheme to use, and why. At equal times earlier ones are preferred.
fn pick(expected: &[Option<f64>], in_use: Option<usize>) -> Option<(usize, Why)> {
    let best = expected.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let within = |time: &Option<f64>, margin: f64| time.is_some_and(|t| t <= best * (1.0 + margin));
    if let Some(held) = in_use
        && expected.get(held).is_some_and(|time| within(time, HYSTERESIS))
    {
        return Some((held, Why::Kept));
    }
    let found = expected.iter().position(|time| within(time, MARGIN))?;
    Some((found, if in_use.is_some() { Why::Better } else { Why::First }))
}

#[cfg(test)]
mod tests {
    use super::super::choice::KnownPath;
    use super::super::standard;
    use super::*;
    use crate::ReliableConfig;

    struct Asked {
        planner: Planner,
        config: ReliableConfig,
    }

    impl Asked {
        fn new() -> Asked {
            Asked { planner: Planner::default(), config: ReliableConfig::default() }
        }

        fn path(packet_loss: f64) -> KnownPath {
            KnownPath { rtt_ns: Some(25_000_000), bandwidth_bps: Some(400e9), packet_loss }
        }

        fn ask(&mut self, bytes: u64, path: KnownPath) -> (String, Why) {
            let schemes = standard();
            let shape = self.config.shape(bytes);
            let cx = ChoiceCx { shape: &shape, schemes: &schemes, path };
            let choice = self.planner.choose(&cx);
            (schemes[choice.scheme].name(), choice.why)
        }
    }

    #[test]
    fn what_is_taken_is_what_the_paper_recommends() {
        let mut asked = Asked::new();
        let (bytes, chunk) = (128 << 20, 1.0 / 16.0);
        assert_eq!(asked.ask(bytes, Asked::path(1e-9)).0, "sr-nack");
        assert_eq!(asked.ask(bytes, Asked::path(1e-3 * chunk)).0, "ec-mds");
        // A message of many round trips hides its retransmissions; parity would cost a quarter.
        assert_eq!(asked.ask(16 << 30, Asked::path(1e-5 * chunk)).0, "sr-nack");
        // At this loss rate 8 parity chunks cannot save a group of 32.
        assert_eq!(asked.ask(bytes, Asked::path(0.03)).0, "sr-nack");
    }

    #[test]
    fn what_is_in_use_stays_until_another_is_clearly_better() {
        assert_eq!(pick(&[Some(1.00), Some(1.04)], Some(1)), Some((1, Why::Kept)));
        assert_eq!(pick(&[Some(1.00), Some(1.06)], Some(1)), Some((0, Why::Better)));
        assert_eq!(pick(&[Some(1.009), Some(1.0)], None), Some((0, Why::First)));
        assert_eq!(pick(&[None, Some(1.0)], Some(0)), Some((1, Why::Better)));
        assert_eq!(pick(&[None, None], None), None);
    }

    #[test]
    fn without_a_round_trip_the_first_scheme_is_taken() {
        let mut asked = Asked::new();
        let path = KnownPath { rtt_ns: None, ..Asked::path(0.01) };
        assert_eq!(asked.ask(1 << 20, path), ("sr-nack".to_owned(), Why::Unknown));
    }

    #[test]
    fn whatever_is_measured_there_is_an_answer_and_little_is_kept() {
        let mut asked = Asked::new();
        for i in 0..2_000_u64 {
            let path = KnownPath {
                rtt_ns: Some(i * i * i),
                bandwidth_bps: Some(i as f64 * 1e7),
                packet_loss: (i % 11) as f64 / 10.0,
            };
            asked.ask(i * 1000, path);
        }
        assert!(asked.planner.expected.len() <= MAX_CACHED);
    }
}
