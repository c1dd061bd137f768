//! Properties of a cable: rate, delay, queue, marking.

use crate::prob::Prob;

/// Rate, delay, queue and marking of one direction of a cable. The default is a perfect one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Capacity of the transmit queue; packets that do not fit are dropped. Without a rate nothing
    /// is queued.
    pub queue_bytes: u64,
    /// Congestion marking, if there is any.
    pub ecn: Option<Ecn>,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig { rate_bps: None, delay_ns: 0, queue_bytes: 64 << 20, ecn: None }
    }
}

impl LinkConfig {
    /// How long `bytes` take to be transmitted, rounded up.
    pub fn transmit_ns(&self, bytes: u64) -> u64 {
        let Some(rate) = self.rate_bps else { return 0 };
        let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(rate.max(1)));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// How long a full queue takes to drain.
    pub fn drain_ns(&self) -> u64 {
        self.transmit_ns(self.queue_bytes)
    }
}

/// When a queue marks ECN-capable packets, by its length at their arrival: RED's ramp, as in
/// DCQCN's switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecn {
    /// Up to here, never.
    pub kmin_bytes: u64,
    /// From here on, always.
    pub kmax_bytes: u64,
    /// Probability just below `kmax_bytes`; in between it grows linearly.
    pub pmax: Prob,
}

impl Ecn {
    pub(crate) fn probability(&self, queued_bytes: u64) -> Prob {
        if queued_bytes <= self.kmin_bytes {
            return Prob::NEVER;
        }
        if queued_bytes >= self.kmax_bytes {
            return Prob::ALWAYS;
        }
        let over = (queued_bytes - self.kmin_bytes) as f64;
        let span = (self.kmax_bytes - self.kmin_bytes) as f64;
        Prob::new(self.pmax.as_f64() * over / span)
    }
}
