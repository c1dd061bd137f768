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

#[cfg(test)]
mod tests;
