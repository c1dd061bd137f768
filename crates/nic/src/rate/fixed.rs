//! A constant rate.

use super::{ControlledConnection, ControllerFactory, RateController};
use crate::time::Time;

/// A factory of controllers with a constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedRate {
    /// Bits per second of UDP payload, at least 1.
    pub bits_per_sec: u64,
}

impl ControllerFactory for FixedRate {
    fn build(&self, _now: Time, _connection: &ControlledConnection) -> Box<dyn RateController> {
        Box::new(Fixed(self.bits_per_sec.max(1)))
    }
}

#[derive(Debug)]
struct Fixed(u64);

impl RateController for Fixed {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        Some(self.0)
    }
}
