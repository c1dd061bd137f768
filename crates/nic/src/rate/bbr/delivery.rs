//! The delivery rate, measured over the most recent round trips.

use crate::time::Time;

/// Marks kept: a few round trips' worth.
const MARKS: usize = 64;
/// Marks made per round trip.
const MARKS_PER_RTT: u64 = 16;

/// The totals at one point in time.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    now: Time,
    /// By the receiver's clock, or by ours if it reports none.
    arrival_ns: u64,
    delivered: u64,
    /// When that was sent.
    sent: Time,
    /// The pacing rate.
    pacing_bps: u64,
}

/// What was delivered in the last round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateSample {
    pub(super) bps: u64,
    /// The highest pacing rate meanwhile.
    pub(super) paced_bps: u64,
    /// For part of the time there was nothing to send.
    pub(super) app_limited: bool,
}

/// Measures the delivery rate over round trips.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) delivered: u64,
    marks: [Mark; MARKS],
    /// Marks made so far.
    made: usize,
    /// When there was last nothing to send.
    limited_until: Option<Time>,
    is_limited: bool,
}

impl Delivery {
    pub(super) fn new(now: Time) -> Delivery {
        let first = Mark { now, arrival_ns: 0, ..Mark::default() };
        Delivery {
            delivered: 0,
            marks: [first; MARKS],
            made: 0,
            limited_until: None,
            is_limited: true,
        }
    }

    /// Whether there was nothing more to send, the last time that something was sent.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.delivered = self.delivered.saturating_add(bytes);
    }

    /// Something was sent; `app_limited` if there is nothing more.
    pub(super) fn on_sent(&mut self, now: Time, app_limited: bool) {
        if self.is_limited || app_limited {
            self.limited_until = Some(now);
        }
        self.is_limited = app_limited;
    }

    /// `bytes` were delivered, of packets sent `rtt_ns` ago.
    pub(super) fn on_acked(
        &mut self,
        now: Time,
        bytes: u64,
        arrival_ns: u64,
        rtt_ns: u64,
        pacing_bps: u64,
    ) -> Option<RateSample> {
        self.add(bytes);
        let sent_at = Time::from_nanos(now.as_nanos().saturating_sub(rtt_ns));
        let sample = self.base(sent_at).and_then(|base| self.sample(now, base, arrival_ns, rtt_ns));
        let spacing = rtt_ns / MARKS_PER_RTT;
        if self.made == 0 || now.nanos_since(self.mark(self.made - 1).now) >= spacing {
            self.marks[self.made % MARKS] =
                Mark { now, arrival_ns, delivered: self.delivered, sent: sent_at, pacing_bps };
            self.made += 1;
        }
        sample
    }

    fn mark(&self, index: usize) -> &Mark {
        &self.marks[index % MARKS]
    }

    /// The latest mark made no later than `sent_at`, or else the oldest.
    fn base(&self, sent_at: Time) -> Option<usize> {
        let oldest = self.made.saturating_sub(MARKS);
        let by_then = (oldest..self.made).rev().find(|index| self.mark(*index).now <= sent_at);
        by_then.or((self.made > oldest).then_some(oldest))
    }

    fn sample(&self, now: Time, base: usize, arrival_ns: u64, rtt_ns: u64) -> Option<RateSample> {
        let from = self.mark(base);
        // The receiver's clock must roughly agree with ours.
        let elapsed = now.nanos_since(from.now);
        let arriving = arrival_ns.saturating_sub(from.arrival_ns).max(elapsed / 2);
        // After a receiver has lost its core for a while, much arrives at once. A queue that
        // becomes shorter has a small effect of that kind, and hides none of the path's rate.
        let sent = Time::from_nanos(now.as_nanos().saturating_sub(rtt_ns));
        let interval = arriving.max(sent.nanos_since(from.sent) / 16 * 15);
        // Less than half a round trip says little about the rate: packets come in bursts.
        if interval < rtt_ns / 2 || interval == 0 {
            return None;
        }
        let bytes = self.delivered.saturating_sub(from.delivered);
        let bps = u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(interval)).ok()?;
        // Nothing is delivered faster than it was sent: any excess comes from queued feedback.
        let paced = (base..self.made).map(|index| self.mark(index).pacing_bps).max().unwrap_or(0);
        let first_sent = from.now.as_nanos().saturating_sub(rtt_ns);
        let app_limited =
            self.is_limited || self.limited_until.is_some_and(|at| at.as_nanos() >= first_sent);
        Some(RateSample { bps: bps.min(paced), paced_bps: paced, app_limited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_PER_MS: u64 = 100_000;
    const BPS: u64 = BYTES_PER_MS * 8_000;

    /// The receiver loses its core for 5 ms, and then handles at once what has arrived meanwhile.
    #[test]
    fn what_arrives_at_once_after_a_pause_was_not_delivered_faster() {
        let mut delivery = Delivery::new(Time::ZERO);
        let mut best = 0;
        for sent_ms in 0..60 {
            let arrival_ms = match sent_ms + 5 {
                25..30 => 30,
                other => other,
            };
            let (now, rtt_ms) = (Time::from_millis(arrival_ms + 5), arrival_ms + 5 - sent_ms);
            let (arrival_ns, rtt_ns) = (arrival_ms * 1_000_000, rtt_ms * 1_000_000);
            delivery.on_sent(Time::from_millis(sent_ms), false);
            let sample = delivery.on_acked(now, BYTES_PER_MS, arrival_ns, rtt_ns, BPS * 2);
            best = sample.map_or(0, |sample| sample.bps).max(best);
        }
        assert!((BPS * 9 / 10..BPS * 11 / 10).contains(&best), "{best} instead of {BPS}");
    }
}
