//! Spreading packets out in time.

use crate::rate::{RateControl, RateController};
use crate::time::Time;

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
mod tests {
    use super::*;

    const GBPS: u64 = 1_000_000_000;

    #[test]
    fn a_fixed_rate_is_kept_over_time() {
        let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: 8 * GBPS }, Time::ZERO);
        let mut now = Time::from_millis(1);
        let start = now;
        for _ in 0..1_000 {
            now = now.max(pacer.next());
            pacer.on_sent(now, 1_000);
        }
        // 1000 packets of 1 µs each, less the last burst.
        let took = now.nanos_since(start);
        assert!((930_000..=1_000_000).contains(&took), "{took}");
    }

    #[test]
    fn packets_go_in_bursts_with_pauses_between_them() {
        let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: GBPS }, Time::ZERO);
        let mut now = Time::from_millis(10);
        for _ in 0..10 {
            let mut packets = 0;
            while pacer.next() <= now {
                pacer.on_sent(now, 1_250);
                packets += 1;
            }
            // 10 µs each.
            assert_eq!(packets, 10);
            assert_eq!(pacer.next().nanos_since(now), BURST_NS);
            now = pacer.next();
        }
    }

    #[test]
    fn a_slow_rate_has_no_bursts() {
        let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: 10_000_000 }, Time::ZERO);
        let now = Time::from_millis(10);
        pacer.on_sent(now, 1_250);
        assert_eq!(pacer.next(), now.plus_nanos(1_000_000));
    }

    #[test]
    fn lateness_is_made_up_for_and_rest_is_not() {
        for rested in [false, true] {
            let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: 8 * GBPS }, Time::ZERO);
            pacer.on_sent(Time::from_millis(10), 1_000);
            if rested {
                pacer.rest();
            }
            // A millisecond late: a thousand packets of 1 µs each.
            let now = Time::from_millis(11);
            let mut at_once = 0;
            while pacer.next() <= now {
                pacer.on_sent(now, 1_000);
                at_once += 1;
            }
            // And a burst of 61 more.
            let expected = if rested { 61..=63 } else { 1_060..=1_064 };
            assert!(expected.contains(&at_once), "{at_once}");
        }
    }

    #[test]
    fn an_unlimited_pacer_never_waits() {
        let mut pacer = Pacer::new(&RateControl::Unlimited, Time::ZERO);
        pacer.on_sent(Time::from_nanos(5), u64::MAX);
        assert_eq!(pacer.next(), Time::ZERO);
    }
}
