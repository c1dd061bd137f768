//! Competing with flows that keep the queue full.
//!
//! A model of the path cannot tell our share of it, which is whatever the others leave. Beside
//! flows that slow down on loss, ours grows and yields as they do, as CUBIC does (RFC 9438). Flows
//! that ignore losses show when we yield: the queue is full again at once.

use crate::time::Time;

/// CUBIC's constants, and the segment size it counts in.
const C: f64 = 0.4;
const CUT: f64 = 0.75;
const SEGMENT: f64 = 1_448.0;
/// Losses within this many round trips belong to one event.
const EVENT_RTTS: u64 = 3;
/// If the queue is full again this soon after we yielded, nobody else has yielded.
const AGAIN_RTTS: u64 = 16;

/// What losses reveal about the other flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Nothing new.
    Unknown,
    /// They do not yield.
    Unresponsive,
}

/// A window that grows and yields like CUBIC's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compete {
    window: f64,
    /// Window before the last cut, where growth slows down.
    origin: f64,
    /// When growth began, and the window that Reno would have by now.
    epoch: Option<Time>,
    reno: f64,
    cut_at: Option<Time>,
    /// The window before the cuts of a test.
    before_cut: f64,
    /// It has just yielded, and drains its own part of the queue: if that empties the queue, there
    /// is nobody to compete with.
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

    /// The window before it yielded in vain.
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

    /// A packet was lost while the queue was long.
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
        // A flow that grew less than the last time makes space for others (fast convergence).
        self.origin = if self.window < self.origin { self.window * 0.85 } else { self.window };
        self.window = (self.window * CUT).max(2.0);
        self.reno = self.window;
        self.epoch = None;
        Others::Unknown
    }
}
