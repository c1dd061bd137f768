//! How fast a QP may send: one trait, chosen per QP at run time.

mod dcqcn;

use core::fmt::Debug;

use dcqcn::Dcqcn;
pub use dcqcn::DcqcnParams;

use crate::time::Time;

/// Which rate controller a QP runs.
#[derive(Clone, Debug, PartialEq)]
pub enum RateControl {
    /// As fast as the window allows.
    Unlimited,
    /// Never faster than this.
    Fixed {
        /// Bits per second of UDP payload.
        bits_per_sec: u64,
    },
    /// DCQCN: sends ECN-capable packets and slows down on CNPs.
    Dcqcn(DcqcnParams),
}

/// A rate controller: told what happens to a QP, asked how fast it may send.
///
/// It has no timers of its own: whatever should have happened by `now` is caught up with when it
/// is asked.
pub trait RateController: Debug + Send {
    /// The rate at `now`, in bits per second; `None` for no limit.
    fn rate_bps(&mut self, now: Time) -> Option<u64>;
    /// `bytes` were sent.
    fn on_sent(&mut self, now: Time, bytes: u64);
    /// The peer reports congestion.
    fn on_cnp(&mut self, now: Time);
    /// Whether data packets should say that they understand ECN marks.
    fn wants_ecn(&self) -> bool;
}

impl RateControl {
    /// The controller itself; none where there is nothing to control.
    pub(crate) fn build(&self, now: Time) -> Option<Box<dyn RateController>> {
        match self {
            RateControl::Unlimited => None,
            RateControl::Fixed { bits_per_sec } => Some(Box::new(Fixed((*bits_per_sec).max(1)))),
            RateControl::Dcqcn(params) => Some(Box::new(Dcqcn::new(params.clone(), now))),
        }
    }
}

/// A constant rate.
#[derive(Debug)]
struct Fixed(u64);

impl RateController for Fixed {
    fn rate_bps(&mut self, _now: Time) -> Option<u64> {
        Some(self.0)
    }

    fn on_sent(&mut self, _now: Time, _bytes: u64) {}

    fn on_cnp(&mut self, _now: Time) {}

    fn wants_ecn(&self) -> bool {
        false
    }
}

/// Spreads a QP's packets out in time at its controller's rate.
#[derive(Debug)]
pub(crate) struct Pacer {
    controller: Option<Box<dyn RateController>>,
    /// When the next packet may go.
    next: Time,
    /// When the next packet would go if they were spread out evenly.
    due: Time,
    /// How far ahead of that the burst under way may get.
    burst_until: Time,
    /// There was nothing to send since the last packet.
    rested: bool,
}

/// Packets go in bursts of so much time, but no more than these bytes, with a pause after each: a burst
/// is one system call, where single packets would be one each. A queue on the way has to hold it, and
/// the wait for it is to be short beside a round trip.
const BURST_NS: u64 = 100_000;
const BURST_BYTES: u64 = 60 << 10;
/// A pacer that was late may send so much at once to catch up: what it missed in this time, but no
/// more than these bytes. Software timers are late by tens of microseconds, and by milliseconds on a
/// busy machine; without credit every lateness would be lost throughput, and with too much of it a
/// queue on the way would overflow. To have had nothing to send is no lateness.
const CATCH_UP_NS: u64 = 4_000_000;
const CATCH_UP_BYTES: u64 = 1 << 20;

impl Pacer {
    pub(crate) fn new(control: &RateControl, now: Time) -> Pacer {
        Pacer {
            controller: control.build(now),
            next: Time::ZERO,
            due: Time::ZERO,
            burst_until: Time::ZERO,
            rested: true,
        }
    }

    /// When the next packet may go: in the past if it may go now.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Whether it never holds anything back.
    #[inline]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.controller.is_none()
    }

    #[inline]
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64) {
        let Some(controller) = &mut self.controller else { return };
        controller.on_sent(now, bytes);
        if let Some(rate) = controller.rate_bps(now) {
            let time_of = |bytes: u64| {
                let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            };
            let late_by = if self.rested { 0 } else { CATCH_UP_NS.min(time_of(CATCH_UP_BYTES)) };
            self.rested = false;
            if self.due <= now {
                self.burst_until = now.plus_nanos(BURST_NS.min(time_of(BURST_BYTES)));
            }
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(late_by));
            self.due = self.due.max(earliest).plus_nanos(time_of(bytes));
            self.next = if self.due < self.burst_until { now } else { self.due };
        }
    }

    /// There is nothing to send.
    #[inline]
    pub(crate) fn rest(&mut self) {
        self.rested = true;
    }

    pub(crate) fn on_cnp(&mut self, now: Time) {
        if let Some(controller) = &mut self.controller {
            controller.on_cnp(now);
        }
    }

    #[inline]
    pub(crate) fn wants_ecn(&self) -> bool {
        self.controller.as_ref().is_some_and(|c| c.wants_ecn())
    }

    /// The rate now, for those who watch.
    pub(crate) fn rate_bps(&mut self, now: Time) -> Option<u64> {
        self.controller.as_mut()?.rate_bps(now)
    }
}

#[cfg(test)]
mod tests;
