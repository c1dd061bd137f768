//! The end of a link that packets enter: a rate and the queue in front of it.

use crate::config::LinkConfig;
use crate::time::Time;

/// Nanoseconds times bits per second in a byte.
const NS_BPS_PER_BYTE: u64 = 8_000_000_000;

/// Sends packets one after the other. The queue is the time until it is free: no packet is stored.
#[derive(Clone, Debug)]
pub(crate) struct Transmitter {
    rate_bps: Option<u64>,
    /// How long a full queue takes to drain.
    limit_ns: u64,
    /// When everything admitted has been sent, rounded down.
    free_at: Time,
    /// The fraction that `free_at` drops, in nanoseconds times the rate: rounding must not change
    /// the rate.
    remainder: u64,
    /// The longest time that anything waited.
    peak_ns: u64,
}

/// When a packet's last bit leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    at: Time,
    remainder: u64,
}

impl Transmitter {
    pub(crate) fn new(config: &LinkConfig) -> Transmitter {
        Transmitter {
            rate_bps: config.rate_bps.map(|rate| rate.max(1)),
            limit_ns: limit_ns(config),
            free_at: Time::ZERO,
            remainder: 0,
            peak_ns: 0,
        }
    }

    /// Changes the rate and the queue. Queued packets stay queued, and leave at the new rate.
    pub(crate) fn change(&mut self, now: Time, config: &LinkConfig) {
        let waiting = self.queued_bytes(now);
        let peak_ns = self.peak_ns;
        *self = Transmitter::new(config);
        self.free_at = now.plus_nanos(config.transmit_ns(waiting));
        self.peak_ns = peak_ns;
    }

    pub(crate) fn free_at(&self) -> Time {
        self.free_at
    }

    /// When the last bit of a packet that comes at `now` would have left.
    #[inline]
    pub(crate) fn departure(&self, now: Time, len: usize) -> Departure {
        let (free_at, remainder) =
            if self.free_at < now { (now, 0) } else { (self.free_at, self.remainder) };
        let Some(rate) = self.rate_bps else { return Departure { at: free_at, remainder: 0 } };
        let work = (len as u64).saturating_mul(NS_BPS_PER_BYTE).saturating_add(remainder);
        Departure { at: free_at.plus_nanos(work / rate), remainder: work % rate }
    }

    /// Whether such a packet does not fit the queue.
    #[inline]
    pub(crate) fn is_full(&self, now: Time, departure: &Departure) -> bool {
        self.rate_bps.is_some() && departure.at.nanos_since(now) > self.limit_ns
    }

    /// Takes the packet.
    #[inline]
    pub(crate) fn take(&mut self, now: Time, departure: Departure) -> Time {
        (self.free_at, self.remainder) = (departure.at, departure.remainder);
        self.peak_ns = self.peak_ns.max(self.free_at.nanos_since(now));
        self.free_at
    }

    /// Bytes queued at `now`: as many as are sent until the queue is empty.
    pub(crate) fn queued_bytes(&self, now: Time) -> u64 {
        self.bytes_in(self.free_at.nanos_since(now))
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.bytes_in(self.peak_ns)
    }

    fn bytes_in(&self, nanos: u64) -> u64 {
        let product = u128::from(nanos) * u128::from(self.rate_bps.unwrap_or(0));
        u64::try_from(product / u128::from(NS_BPS_PER_BYTE)).unwrap_or(u64::MAX / 2)
    }
}

/// How long a full queue takes to drain, rounded down so that the queue never exceeds its limit.
fn limit_ns(config: &LinkConfig) -> u64 {
    let work = u128::from(config.queue_bytes) * u128::from(NS_BPS_PER_BYTE);
    config
        .rate_bps
        .map_or(0, |rate| u64::try_from(work / u128::from(rate.max(1))).unwrap_or(u64::MAX))
}
