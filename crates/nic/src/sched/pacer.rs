//! Spreads packets over time at the rate that a rate controller sets.

use crate::rate::{BURST_NS, ControlledConnection, ControllerFactory, RateController, Sent};
use crate::time::Time;

/// Spreads a QP's packets over time at its controller's rate.
#[derive(Debug)]
pub(crate) struct Pacer {
    controller: Option<Box<dyn RateController>>,
    /// The controller's latest rate; `UNLIMITED` without a limit.
    rate_bps: u64,
    window_bytes: u64,
    /// What may still be sent in this turn.
    turn_left: u64,
    burst_ns: u32,
    wants_ecn: bool,
    wants_feedback: bool,
    /// Sent in this turn.
    turn_bytes: u64,
    /// When the next packet may go.
    next: Time,
    /// When the next packet would go if they were spread out evenly.
    due: Time,
    /// How far ahead of that the current burst may get.
    burst_until: Time,
    /// Since when there has been nothing to send; `NEVER` if there is something.
    resting: Time,
}

const UNLIMITED: u64 = u64::MAX;

/// Most bytes of a burst, with a pause after each: what one system call takes.
const BURST_BYTES: u64 = 60 << 10;
/// How much a late pacer may send at once to catch up: what it missed in this time, capped in
/// bytes. Software timers are late by tens of microseconds, and by milliseconds on a busy machine;
/// without catching up every delay would be lost throughput, and with too much of it a queue on the
/// path would overflow. Time with nothing to send does not count as late.
const CATCH_UP_NS: u64 = 4_000_000;
const CATCH_UP_BYTES: u64 = 1 << 20;
/// Having nothing to send for less than this does not count as idle: a protocol above keeps a short
/// queue, empties it to catch up, and refills it the next time it runs.
const REST_NS: u64 = 200_000;

impl Pacer {
    /// Without a factory, the pacer never holds anything back.
    pub(crate) fn new(
        now: Time,
        factory: Option<&dyn ControllerFactory>,
        connection: &ControlledConnection,
    ) -> Pacer {
        let controller = factory.map(|factory| factory.build(now, connection));
        let mut pacer = Pacer {
            wants_ecn: controller.as_ref().is_some_and(|controller| controller.wants_ecn()),
            wants_feedback: controller.as_ref().is_some_and(|c| c.wants_feedback()),
            burst_ns: BURST_NS,
            controller,
            rate_bps: UNLIMITED,
            window_bytes: u64::MAX,
            turn_left: u64::MAX,
            turn_bytes: 0,
            next: Time::ZERO,
            due: Time::ZERO,
            burst_until: Time::ZERO,
            resting: Time::ZERO,
        };
        pacer.ask(now);
        pacer
    }

    /// When the next packet may go: in the past if it may go now.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Whether there is a controller, which needs to be told of events.
    #[inline]
    pub(crate) fn is_controlled(&self) -> bool {
        self.controller.is_some()
    }

    /// Most bytes in flight.
    #[inline]
    pub(crate) fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    #[inline]
    pub(crate) fn wants_ecn(&self) -> bool {
        self.wants_ecn
    }

    /// Whether the controller needs to know what arrives.
    #[inline]
    pub(crate) fn wants_feedback(&self) -> bool {
        self.wants_feedback
    }

    /// Credit that is left, if the controller counts any.
    pub(crate) fn turn_left(&self) -> Option<u64> {
        (self.turn_left != u64::MAX).then_some(self.turn_left)
    }

    /// The current rate, for monitoring.
    pub(crate) fn rate_bps(&mut self, now: Time) -> Option<u64> {
        self.controller.as_mut()?.pacing_rate_bps(now)
    }

    /// The QP's turn begins.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Time) {
        if self.controller.is_some() {
            self.ask(now);
        }
    }

    /// The QP's turn is over. `in_flight_bytes` and `app_limited` are as in [`Sent`].
    pub(crate) fn end_turn(&mut self, now: Time, in_flight_bytes: Option<u64>, app_limited: bool) {
        let bytes = core::mem::take(&mut self.turn_bytes);
        if bytes > 0 {
            let sent = Sent { bytes, in_flight_bytes, app_limited };
            self.tell(now, |controller| controller.on_sent(now, &sent));
        }
    }

    /// Reports something to the controller, and updates rate and window.
    pub(crate) fn tell(&mut self, now: Time, f: impl FnOnce(&mut dyn RateController)) {
        if let Some(controller) = &mut self.controller {
            f(&mut **controller);
            self.ask(now);
        }
    }

    fn ask(&mut self, now: Time) {
        let Some(controller) = &mut self.controller else { return };
        self.rate_bps = controller.pacing_rate_bps(now).unwrap_or(UNLIMITED);
        self.window_bytes = controller.window_bytes().unwrap_or(u64::MAX);
        self.turn_left = controller.turn_bytes().unwrap_or(u64::MAX);
        self.burst_ns = controller.burst_ns();
        match self.rate_bps {
            UNLIMITED => self.next = Time::ZERO,
            0 => self.next = Time::NEVER,
            _ if self.next == Time::NEVER => self.next = now.max(self.due),
            _ => {}
        }
    }

    /// Bytes were sent.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64) {
        if self.controller.is_none() {
            return;
        }
        self.turn_bytes += bytes;
        // A QP that may not send data still sends acknowledgements.
        let rate = self.rate_bps;
        if rate != 0 && rate != UNLIMITED {
            self.burst_until = self.burst_end(now, rate);
            self.due = self.start(now, rate).plus_nanos(time_of(bytes, rate));
            self.resting = Time::NEVER;
            self.next = if self.due < self.burst_until { now } else { self.due };
            self.turn_left = self.turn_left.saturating_sub(bytes);
            if self.turn_left == 0 {
                self.next = Time::NEVER;
            }
        }
    }

    /// How many packets of `len` bytes may go at once: at least one, if one may go at all.
    pub(crate) fn burst_packets(&self, now: Time, len: u32) -> u32 {
        let rate = self.rate_bps;
        if rate == UNLIMITED {
            return u32::MAX;
        }
        let left = self.burst_end(now, rate).nanos_since(self.start(now, rate));
        let packets = left.div_ceil(time_of(len.into(), rate).max(1));
        let packets = packets.min(self.turn_left.div_ceil(u64::from(len).max(1)));
        u32::try_from(packets).unwrap_or(u32::MAX).max(1)
    }

    /// When the next packet would have gone with even spacing, within the catch-up limit.
    #[inline]
    fn start(&self, now: Time, rate: u64) -> Time {
        let has_rested = now.nanos_since(self.resting) >= REST_NS;
        let late_by = if has_rested { 0 } else { CATCH_UP_NS.min(time_of(CATCH_UP_BYTES, rate)) };
        self.due.max(Time::from_nanos(now.as_nanos().saturating_sub(late_by)))
    }

    /// Where the current burst ends, or the one that begins now.
    #[inline]
    fn burst_end(&self, now: Time, rate: u64) -> Time {
        if self.due > now {
            return self.burst_until;
        }
        now.plus_nanos(u64::from(self.burst_ns).min(time_of(BURST_BYTES, rate)))
    }

    /// There is nothing to send.
    #[inline]
    pub(crate) fn rest(&mut self, now: Time) {
        self.resting = self.resting.min(now);
    }
}

/// How long bytes take at a rate.
#[inline]
fn time_of(bytes: u64, rate_bps: u64) -> u64 {
    let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate_bps.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::rate::FixedRate;
    use crate::types::{Mtu, QpType};

    const GBPS: u64 = 1_000_000_000;

    fn connection() -> ControlledConnection {
        ControlledConnection::new(QpType::Rc.descriptor(), Mtu::B1024)
    }

    fn fixed(bits_per_sec: u64) -> Pacer {
        Pacer::new(Time::ZERO, Some(&FixedRate { bits_per_sec }), &connection())
    }

    #[test]
    fn a_fixed_rate_is_kept_over_time() {
        let mut pacer = fixed(8 * GBPS);
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
        let mut pacer = fixed(GBPS);
        let mut now = Time::from_millis(10);
        for _ in 0..10 {
            let mut packets = 0;
            while pacer.next() <= now {
                pacer.on_sent(now, 1_250);
                packets += 1;
            }
            // 10 µs each.
            assert_eq!(packets, 10);
            assert_eq!(pacer.next().nanos_since(now), u64::from(BURST_NS));
            now = pacer.next();
        }
    }

    #[test]
    fn a_slow_rate_has_no_bursts() {
        let mut pacer = fixed(10_000_000);
        let now = Time::from_millis(10);
        pacer.on_sent(now, 1_250);
        assert_eq!(pacer.next(), now.plus_nanos(1_000_000));
    }

    #[test]
    fn lateness_is_made_up_for_and_rest_is_not() {
        let now = Time::from_millis(11);
        // Since when there was nothing to send.
        let short = Time::from_nanos(now.as_nanos() - REST_NS + 1);
        let long = Time::from_nanos(now.as_nanos() - REST_NS);
        for (resting, rested) in [(None, false), (Some(short), false), (Some(long), true)] {
            let mut pacer = fixed(8 * GBPS);
            pacer.on_sent(Time::from_millis(10), 1_000);
            if let Some(since) = resting {
                pacer.rest(since);
                // It does not begin anew.
                pacer.rest(now);
            }
            // A millisecond late: a thousand packets of 1 µs each.
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
        let mut pacer = Pacer::new(Time::ZERO, None, &connection());
        pacer.on_sent(Time::from_nanos(5), u64::MAX);
        assert_eq!(pacer.next(), Time::ZERO);
    }
}
