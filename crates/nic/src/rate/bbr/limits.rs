//! Pacing rate and congestion window, derived from the model.

use super::train::TRAIN_BPS;
use super::{Bbr, Company, Phase};

/// Doubles the rate every round trip: 4 ln 2.
const STARTUP_GAIN: f64 = 2.77;
const STARTUP_WINDOW_GAIN: f64 = 2.0;
/// Pace and window after a first flight that met a bottleneck, until so much of its rate arrives.
/// Slower, a flow beside CUBIC would not see that the queue is not the path's.
const TRAIN_GAIN: f64 = 1.25;
const CONFIRMED: f64 = 0.6;
/// Empties the queue of startup in about a round trip.
const DRAIN_GAIN: f64 = 0.35;
const UP_GAIN: f64 = 1.25;
const DOWN_GAIN: f64 = 0.75;
/// Slightly below the model, so that an overestimated rate builds no queue.
const CRUISE_GAIN: f64 = 0.99;
/// Slower still while there is a queue, so that several flows, each of which thinks its rate is
/// right, drain it together.
const TRIM_GAIN: f64 = 0.92;
const TRIM_ABOVE: f64 = 1.1;
const WINDOW_GAIN: f64 = 1.5;
/// Next to flows that keep a queue and do not yield.
const UNYIELDING_WINDOW_GAIN: f64 = 2.0;
const PROBE_RTT_WINDOW_GAIN: f64 = 0.5;
/// Less in flight than the model's BDP, so that a queue of our own is gone.
const DRAINED: f64 = 0.85;
/// A pacer's bursts, which are in flight on top of what the model says.
const BURST_BYTES: u64 = 128 << 10;

impl Bbr {
    pub(super) fn pace_bps(&self) -> u64 {
        match &self.company {
            Company::Yielding(compete) if self.phase != Phase::ProbeRtt => {
                // The window is the limit: pacing spreads it over a round trip.
                let rtt_ns = self.smoothed_rtt_ns.unwrap_or(self.params.initial_rtt_ns);
                bps_of(compete.window_bytes(), rtt_ns) / 4 * 5
            }
            _ => {
                let bps = (self.rate_bps() as f64 * self.pacing_gain()) as u64;
                if self.awaits_train() { bps.max(TRAIN_BPS) } else { bps }
            }
        }
    }

    /// Whether as much arrives as was to be expected after a first flight that met a bottleneck.
    pub(super) fn has_confirmed_train(&self) -> bool {
        self.train.is_stretched()
            && self.max_rate.get() as f64 >= self.train.bps() as f64 * CONFIRMED
    }

    /// Whether the rate is that of a first flight that met a bottleneck, and nothing else is known.
    fn tries_train(&self) -> bool {
        self.phase == Phase::Startup && self.train.is_stretched() && !self.has_confirmed_train()
    }

    /// Whether nothing is known of the path yet but what the first flight may show.
    fn awaits_train(&self) -> bool {
        self.phase == Phase::Startup && self.max_rate.get() == 0 && self.train.is_awaited()
    }

    fn pacing_gain(&self) -> f64 {
        match self.phase {
            Phase::Startup if self.tries_train() => TRAIN_GAIN,
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Up => UP_GAIN,
            Phase::Down => DOWN_GAIN,
            Phase::Cruise { .. } if !self.is_competing() && self.has_queue() => TRIM_GAIN,
            Phase::Cruise { .. } | Phase::ProbeRtt => CRUISE_GAIN,
        }
    }

    /// Whether what was sent in this phase has met a queue. What met one before was sent while the
    /// path was probed, and that queue has been drained.
    fn has_queue(&self) -> bool {
        let rtt = self.last_rtt_ns as f64;
        rtt > self.min_rtt_ns() as f64 * TRIM_ABOVE && self.last_timed >= self.phase_start
    }

    pub(super) fn window(&self) -> u64 {
        let gain = match (self.phase, &self.company) {
            (Phase::ProbeRtt, _) => PROBE_RTT_WINDOW_GAIN,
            (_, Company::Yielding(compete)) if compete.is_draining => {
                let drained = (self.bdp() as f64 * DRAINED) as u64;
                return drained.min(compete.window_bytes()) + BURST_BYTES;
            }
            // Some of what counts as in flight has arrived, but its report has not.
            (_, Company::Yielding(compete)) => {
                return compete.window_bytes().min(MAX_BYTES) / 8 * 9
                    + self.unreported()
                    + BURST_BYTES;
            }
            (Phase::Startup, _) if self.awaits_train() => 0.0,
            (Phase::Startup, _) if self.tries_train() => TRAIN_GAIN,
            (Phase::Startup, _) => STARTUP_WINDOW_GAIN,
            (_, Company::Unyielding(_)) => UNYIELDING_WINDOW_GAIN,
            (_, Company::None) => WINDOW_GAIN,
        };
        let window = ((self.bdp() + self.unreported()) as f64 * gain) as u64;
        window.max(self.params.initial_window_bytes).min(self.window_bound) + BURST_BYTES
    }
}

/// No path has more in flight: this keeps a peer's values from overflowing anything.
const MAX_BYTES: u64 = 1 << 40;
const MAX_BPS: u64 = 1 << 50;
pub(super) const MAX_RTT_NS: u64 = 60_000_000_000;

pub(super) fn bytes_in(bps: u64, ns: u64) -> u64 {
    let bytes = u128::from(bps) * u128::from(ns) / 8_000_000_000;
    u64::try_from(bytes).unwrap_or(MAX_BYTES).min(MAX_BYTES)
}

pub(super) fn bps_of(bytes: u64, ns: u64) -> u64 {
    let bps = u128::from(bytes) * 8_000_000_000 / u128::from(ns.max(1));
    u64::try_from(bps).unwrap_or(MAX_BPS).min(MAX_BPS)
}
