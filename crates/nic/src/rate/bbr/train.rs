//! The first flight of a connection. How far apart its packets arrive says how fast the path is, a
//! round trip after the first has left; doubling from a guess takes several.

use crate::time::Time;

/// The rate at which the first flight leaves, and so the most that it can show.
pub(super) const TRAIN_BPS: u64 = 500_000_000;
/// It says something when so much has arrived behind its first packets,
const ENOUGH_BYTES: u64 = 128 << 10;
/// or when so much time has passed meanwhile: then the path is slow.
const ENOUGH_NS: u64 = 5_000_000;

/// What the first feedback said.
#[derive(Clone, Copy, Debug)]
struct First {
    now: Time,
    arrival_ns: u64,
    delivered: u64,
}

/// Measures the first flight.
#[derive(Debug, Default)]
pub(super) struct Train {
    first: Option<First>,
    /// The highest rate at which it arrived.
    bps: u64,
    /// The sender ran out of data: a low rate says nothing about the path.
    is_app_limited: bool,
    is_over: bool,
}

impl Train {
    pub(super) fn on_sent(&mut self, app_limited: bool) {
        self.is_app_limited |= app_limited && !self.is_over;
    }

    /// By `arrival_ns` of the receiver's clock, so many bytes had arrived since the beginning.
    pub(super) fn on_acked(&mut self, now: Time, arrival_ns: u64, delivered: u64, rtt_ns: u64) {
        let first = *self.first.get_or_insert(First { now, arrival_ns, delivered });
        // What is sent when the first feedback comes is heard of a round trip later.
        let elapsed = now.nanos_since(first.now);
        self.is_over |= elapsed >= rtt_ns;
        let bytes = delivered.saturating_sub(first.delivered);
        // What a receiver's clock says must have some likeness to ours.
        let interval_ns = arrival_ns.saturating_sub(first.arrival_ns).max(elapsed / 2);
        let is_slow = interval_ns >= ENOUGH_NS && !self.is_app_limited;
        if self.is_over || interval_ns == 0 || !(bytes >= ENOUGH_BYTES || is_slow) {
            return;
        }
        // Nothing arrives faster than it was sent, whatever the receiver says.
        let bps = super::bps_of(bytes, interval_ns).min(TRAIN_BPS);
        self.bps = self.bps.max(bps);
    }

    /// The rate that it has shown; 0 if none.
    pub(super) fn bps(&self) -> u64 {
        self.bps
    }

    /// Whether a rate below what is assumed of an unknown path is the path's.
    pub(super) fn is_limited_by_path(&self) -> bool {
        self.bps > 0 && !self.is_app_limited
    }

    /// Whether it arrived slower than it was sent: it has met the bottleneck, or others there.
    /// Beside others its rate is more than is left, since it has pushed them back.
    pub(super) fn is_stretched(&self) -> bool {
        self.is_limited_by_path() && self.bps < TRAIN_BPS / 10 * 8
    }

    /// Whether it may still show a rate, and has not.
    pub(super) fn is_awaited(&self) -> bool {
        self.bps == 0 && !self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 80_000_000;

    /// Feedback every millisecond, of so many bytes each, with the receiver's clock at so many
    /// nanoseconds each.
    fn train(bytes: u64, clock_ns: u64, app_limited: bool) -> Train {
        let mut train = Train::default();
        train.on_sent(app_limited);
        for n in 0..20 {
            let now = Time::from_millis(80 + n);
            train.on_acked(now, n * clock_ns, n * bytes, RTT_NS);
        }
        train
    }

    #[test]
    fn it_shows_the_rate_at_which_it_arrives() {
        let train = train(25_000, 1_000_000, false);
        assert_eq!(train.bps(), 200_000_000);
        assert!(train.is_limited_by_path() && !train.is_awaited());
    }

    #[test]
    fn a_clock_that_stands_still_gains_nothing() {
        for clock_ns in [0, 1, 1_000] {
            assert!(train(25_000, clock_ns, false).bps() <= 400_000_000, "twice ours at most");
            assert_eq!(train(u64::MAX / 64, clock_ns, false).bps(), TRAIN_BPS);
        }
    }

    #[test]
    fn a_sender_with_little_to_send_does_not_look_like_a_slow_path() {
        let train = train(100, 1_000_000, true);
        assert_eq!(train.bps(), 0);
        assert!(!train.is_limited_by_path());
    }

    #[test]
    fn what_comes_a_round_trip_later_is_not_of_the_first_flight() {
        let mut train = train(0, 1_000_000, true);
        train.on_acked(Time::from_millis(170), RTT_NS, 1 << 30, RTT_NS);
        assert_eq!(train.bps(), 0);
        assert!(!train.is_awaited());
    }
}
