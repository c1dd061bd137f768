//! Adaptive FEC: chooses a code for the losses that the peer reports.
//!
//! The controller looks at the recent reports. Without losses it sends no repairs. With losses it
//! uses as many lanes as the longest burst requires, and the longest lanes whose probability of two
//! losses stays below the target; if there are none, the shortest that the bandwidth cap allows.

use bowline_nic::Time;
use bowline_wire::ReportHeader;

use crate::params::{MAX_BLOCK, MAX_LANES, Params};

/// What a controller aims for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoConfig {
    /// Losses left to the transport, as a fraction of all packets. Each costs it a window, so on a
    /// path with `w` packets in flight goodput drops by `w` times this.
    pub target_residual: f64,
    /// Most repairs, as a fraction of data packets.
    pub max_overhead: f64,
    /// How far back it looks: a link that was clean for this long gets no repairs.
    pub memory_ns: u64,
}

impl Default for AutoConfig {
    fn default() -> AutoConfig {
        AutoConfig { target_residual: 2e-6, max_overhead: 0.25, memory_ns: 1_500_000_000 }
    }
}

/// What a controller observed and chose.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Decision {
    /// The code; none on a clean link.
    pub params: Option<Params>,
    /// Lost packets, as a fraction of all.
    pub loss: f64,
    /// Packets of a mean burst.
    pub mean_burst: f64,
    /// Packets of the longest burst.
    pub longest_burst: u16,
    /// Expected losses left to the transport, as a fraction of all.
    pub residual: f64,
}

/// Slots of its memory: old reports expire in steps of this fraction of it.
const BUCKETS: usize = 12;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Its number, counting since the epoch.
    number: u64,
    expected: u64,
    lost: u64,
    bursts: u64,
    longest: u16,
}

/// Chooses a code from reports.
#[derive(Clone, Debug)]
pub struct Controller {
    config: AutoConfig,
    buckets: [Bucket; BUCKETS],
    last: ReportHeader,
    decision: Decision,
}

/// Lengths of a lane that are tried: 1/64 of overhead down to what the cap allows.
const LANE_LENGTHS: [u8; 6] = [64, 32, 16, 8, 4, 2];

impl Controller {
    /// A controller that has heard nothing.
    pub fn new(config: AutoConfig) -> Controller {
        let last = ReportHeader::default();
        let decision = Decision::default();
        Controller { config, buckets: [Bucket::default(); BUCKETS], last, decision }
    }

    /// Its latest observation and choice.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Handles a report, and decides anew.
    pub fn on_report(&mut self, now: Time, report: &ReportHeader) -> &Decision {
        let number = now.as_nanos() / (self.config.memory_ns / BUCKETS as u64).max(1);
        let bucket = &mut self.buckets[number as usize % BUCKETS];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        // Reports are cumulative, so a lost one does no harm. One that was overtaken is ignored.
        let since = |new: u32, old: u32| u64::from(new.wrapping_sub(old));
        let expected = since(report.expected, self.last.expected);
        if expected < u64::from(u32::MAX / 2) {
            bucket.expected += expected;
            bucket.lost += since(report.lost, self.last.lost);
            bucket.bursts += since(report.bursts, self.last.bursts);
            bucket.longest = bucket.longest.max(report.longest_burst);
            self.last = *report;
        }
        self.decide(number);
        &self.decision
    }

    fn decide(&mut self, number: u64) {
        let oldest = number.saturating_sub(BUCKETS as u64 - 1);
        let mut sum = Bucket::default();
        for bucket in self.buckets.iter().filter(|bucket| bucket.number >= oldest) {
            sum.expected += bucket.expected;
            sum.lost += bucket.lost;
            sum.bursts += bucket.bursts;
            sum.longest = sum.longest.max(bucket.longest);
        }
        if sum.lost == 0 || sum.expected == 0 {
            self.decision = Decision::default();
            return;
        }
        let packets = sum.expected as f64;
        let bursts = sum.bursts.max(1) as f64;
        let decision = Decision {
            params: None,
            loss: sum.lost as f64 / packets,
            mean_burst: sum.lost as f64 / bursts,
            longest_burst: sum.longest,
            residual: 0.0,
        };
        let (params, residual) = self.choose(&decision, bursts / packets);
        self.decision = Decision { params: Some(params), residual, ..decision };
    }

    /// The code for bursts that begin at this rate per packet.
    fn choose(&self, seen: &Decision, burst_rate: f64) -> (Params, f64) {
        let lanes = lanes_for(seen.longest_burst);
        let mut best = None;
        for length in LANE_LENGTHS {
            let too_dear = 1.0 / f64::from(length) > self.config.max_overhead;
            let Some(r) = length.checked_mul(lanes).filter(|r| *r <= MAX_BLOCK) else { continue };
            let Ok(params) = Params::new(r, lanes) else { continue };
            if too_dear && best.is_some() {
                break;
            }
            let residual = residual(params, burst_rate, seen.mean_burst);
            best = Some((params, residual));
            if residual <= self.config.target_residual {
                break;
            }
        }
        best.unwrap_or((FALLBACK, 1.0))
    }
}

/// The code of the paper's evaluation.
const FALLBACK: Params = match Params::new(32, 1) {
    Ok(params) => params,
    Err(_) => unreachable!(),
};

/// Lanes for bursts of up to `longest` packets, and somewhat longer: a burst that spans more
/// packets than there are lanes hits one twice, and more lanes of the same length cost no
/// bandwidth.
fn lanes_for(longest: u16) -> u8 {
    match longest {
        0 | 1 => 1,
        // A report may contain anything: bound it before it can overflow.
        n => (2 * n.min(MAX_LANES.into())).next_power_of_two().min(MAX_LANES.into()) as u8,
    }
}

/// Failed blocks per packet: two bursts begin in one block or its repairs, and meet in a lane.
fn residual(params: Params, burst_rate: f64, mean_burst: f64) -> f64 {
    let (r, c) = (f64::from(params.r()), f64::from(params.c()));
    let two_in_a_block = ((r + c) * burst_rate).powi(2) / 2.0;
    let meet = ((2.0 * mean_burst - 1.0) / c).min(1.0);
    two_in_a_block * meet / r
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports of `packets` each, every 50 ms, with losses in bursts of `burst`.
    fn feed(
        controller: &mut Controller,
        from_ms: u64,
        ms: u64,
        packets: u32,
        bursts: u32,
        burst: u16,
    ) {
        for at in (from_ms..from_ms + ms).step_by(50) {
            let last = controller.last;
            let report = ReportHeader {
                expected: last.expected.wrapping_add(packets),
                lost: last.lost.wrapping_add(bursts * u32::from(burst)),
                bursts: last.bursts.wrapping_add(bursts),
                unrepaired: 0,
                longest_burst: if bursts > 0 { burst } else { 0 },
            };
            controller.on_report(Time::from_millis(at), &report);
        }
    }

    #[test]
    fn a_clean_link_gets_no_repairs_and_a_lossy_one_does() {
        let mut controller = Controller::new(AutoConfig::default());
        feed(&mut controller, 0, 1_000, 10_000, 0, 0);
        assert_eq!(controller.decision().params, None);
        feed(&mut controller, 1_000, 1_000, 10_000, 1, 1);
        let one_in_10_000 = controller.decision().params.unwrap();
        assert_eq!(one_in_10_000.c(), 1);
        assert!(one_in_10_000.r() >= 32, "{one_in_10_000}");
        feed(&mut controller, 2_000, 2_000, 10_000, 12, 4);
        let bursty = controller.decision().params.unwrap();
        assert_eq!(bursty.c(), 8);
        assert!(bursty.overhead() > one_in_10_000.overhead());
        feed(&mut controller, 4_000, 2_000, 10_000, 0, 0);
        assert_eq!(controller.decision().params, None);
    }

    #[test]
    fn the_cap_on_bandwidth_holds_whatever_is_reported() {
        for (bursts, burst) in [(1, 1), (100, 1), (5_000, 1), (1_000, 8), (10, 1_000)] {
            let mut controller = Controller::new(AutoConfig::default());
            feed(&mut controller, 0, 1_000, 10_000, bursts, burst);
            let params = controller.decision().params.unwrap();
            assert!(params.overhead() <= 0.25, "{bursts} bursts of {burst}: {params}");
        }
    }

    #[test]
    fn a_report_may_say_anything() {
        for longest_burst in [0, 1, 2, 255, 256, 32_767, 32_768, 32_769, u16::MAX] {
            for n in [1, 1 << 16, u32::MAX / 2 - 1, u32::MAX] {
                let mut controller = Controller::new(AutoConfig::default());
                let report =
                    ReportHeader { expected: n, lost: n, bursts: n, unrepaired: n, longest_burst };
                for ms in [0, 1, 10_000, u64::MAX / 1_000_000] {
                    let decision = controller.on_report(Time::from_millis(ms), &report);
                    if let Some(params) = decision.params {
                        assert!(params.c() >= 1 && params.overhead() <= 0.5, "{decision:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn counters_that_wrap_and_reports_out_of_order_are_no_losses() {
        let mut controller = Controller::new(AutoConfig::default());
        controller.last = ReportHeader { expected: u32::MAX - 10, ..ReportHeader::default() };
        feed(&mut controller, 0, 500, 1_000, 0, 0);
        let old = ReportHeader { expected: controller.last.expected - 500, ..controller.last };
        controller.on_report(Time::from_millis(500), &old);
        assert_eq!(controller.decision().params, None);
    }
}
