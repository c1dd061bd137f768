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
    /// There was nothing to send since the last packet.
    rested: bool,
}

/// A pacer that was late may send so much at once to catch up: what it missed in this time, but no
/// more than these bytes. Software timers are late by tens of microseconds, and by milliseconds on a
/// busy machine; without credit every lateness would be lost throughput, and with too much of it a
/// queue on the way would overflow.
const CATCH_UP_NS: u64 = 4_000_000;
const CATCH_UP_BYTES: u64 = 1 << 20;
/// And so much after it had nothing to send, which is no lateness.
const RESTED_NS: u64 = 100_000;

impl Pacer {
    pub(crate) fn new(control: &RateControl, now: Time) -> Pacer {
        Pacer { controller: control.build(now), next: Time::ZERO, rested: true }
    }

    /// When the next packet may go: in the past if it may go now.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.next
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
            let most = if self.rested { RESTED_NS } else { CATCH_UP_NS };
            let credit = most.min(time_of(CATCH_UP_BYTES));
            self.rested = false;
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(credit));
            self.next = self.next.max(earliest).plus_nanos(time_of(bytes));
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
