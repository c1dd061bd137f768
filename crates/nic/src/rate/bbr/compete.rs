//! The share of a flow beside others that keep the queue full.
//!
//! A model of the path cannot tell how much of it is ours: that is what the others leave. Beside
//! flows that slow down when packets are lost it grows and yields as they do, which is what CUBIC
//! does (RFC 9438). Flows that take no notice of losses are told by what happens when we yield: the
//! queue is full again at once.

use crate::time::Time;

/// CUBIC's constants, and the segments that it counts in.
const C: f64 = 0.4;
const CUT: f64 = 0.75;
const SEGMENT: f64 = 1_448.0;
/// Losses so many round trips apart belong to one event.
const EVENT_RTTS: u64 = 3;
/// If the queue is full again so soon after we have yielded, nobody else has.
const AGAIN_RTTS: u64 = 16;

/// What losses say of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Nothing new.
    Unknown,
    /// They do not yield.
    Unresponsive,
}

/// A window that grows and yields as CUBIC's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compete {
    window: f64,
    /// Before the last cut, where growth slows down.
    origin: f64,
    /// When growth began, and what CUBIC's elder would have by now.
    epoch: Option<Time>,
    reno: f64,
    cut_at: Option<Time>,
    /// What the cuts of a test have taken.
    before_cut: f64,
    /// It has just yielded, and empties the queue as far as it is its own: if that is all of it,
    /// there is nobody to compete with.
    pub(super) is_draining: bool,
}

impl Compete {
    pub(super) fn new(window_bytes: u64) -> Compete {
        let window = window_bytes as f64 / SEGMENT;
        Compete {
            window,
            origin: window,
            epoch: None,
            reno: window,
            cut_at: None,
            before_cut: window,
            is_draining: false,
        }
    }

    pub(super) fn window_bytes(&self) -> u64 {
        (self.window * SEGMENT) as u64
    }

    /// As much as there was before it yielded in vain.
    pub(super) fn before_cut_bytes(&self) -> u64 {
        (self.before_cut.max(self.window) * SEGMENT) as u64
    }

    pub(super) fn on_acked(&mut self, now: Time, bytes: u64, rtt_ns: u64) {
        self.is_draining = self.cut_at.is_some_and(|at| now.nanos_since(at) < rtt_ns / 2 * 3);
        let start = *self.epoch.get_or_insert(now);
        let acked = bytes as f64 / SEGMENT;
        let k = ((self.origin - self.window_at_epoch()).max(0.0) / C).cbrt();
        let t = (now.nanos_since(start) + rtt_ns) as f64 / 1e9 - k;
        self.reno += 3.0 * (1.0 - CUT) / (1.0 + CUT) * acked / self.window.max(1.0);
        let target = (self.origin + C * t * t * t).max(self.reno).min(self.window * 1.5);
        if target > self.window {
            self.window += (target - self.window) * (acked / self.window.max(1.0)).min(1.0);
        }
    }

    fn window_at_epoch(&self) -> f64 {
        self.before_cut.min(self.origin) * if self.cut_at.is_some() { CUT } else { 1.0 }
    }

    /// Something was lost while the queue was long.
    pub(super) fn on_lost(&mut self, now: Time, rtt_ns: u64) -> Others {
        let since = self.cut_at.map(|at| now.nanos_since(at));
        if since.is_some_and(|since| since < EVENT_RTTS * rtt_ns) {
            return Others::Unknown;
        }
        if since.is_some_and(|since| since < AGAIN_RTTS * rtt_ns) {
            return Others::Unresponsive;
        }
        self.cut_at = Some(now);
        self.is_draining = true;
        self.before_cut = self.window;
        // Who grew less than the last time makes room for others.
        self.origin = if self.window < self.origin { self.window * 0.85 } else { self.window };
        self.window = (self.window * CUT).max(2.0);
        self.reno = self.window;
        self.epoch = None;
        Others::Unknown
    }
}
