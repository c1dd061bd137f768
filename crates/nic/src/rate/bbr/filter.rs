//! Windowed maximum and minimum filters.

use crate::time::Time;

/// Window of the delivery rate's maximum, in rounds: a probing cycle and a little more.
const RATE_ROUNDS: usize = 10;

/// The highest rate of the last rounds.
#[derive(Debug, Default)]
pub(super) struct MaxRate {
    rounds: [u64; RATE_ROUNDS],
    round: usize,
}

impl MaxRate {
    pub(super) fn get(&self) -> u64 {
        self.rounds.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn update(&mut self, bps: u64) {
        let newest = &mut self.rounds[self.round % RATE_ROUNDS];
        *newest = bps.max(*newest);
    }

    /// Ends a round. A round without a sample does not age the others.
    pub(super) fn end_round(&mut self) {
        if self.rounds[self.round % RATE_ROUNDS] > 0 {
            self.round += 1;
            self.rounds[self.round % RATE_ROUNDS] = 0;
        }
    }

    /// Forgets everything but this.
    pub(super) fn reset(&mut self, bps: u64) {
        self.rounds = [0; RATE_ROUNDS];
        self.rounds[self.round % RATE_ROUNDS] = bps;
    }
}

/// The shortest round trip of the last two periods, which the user ends.
#[derive(Debug)]
pub(super) struct RecentRtt {
    current_ns: u64,
    last_ns: u64,
}

impl RecentRtt {
    pub(super) fn new() -> RecentRtt {
        RecentRtt { current_ns: u64::MAX, last_ns: u64::MAX }
    }

    pub(super) fn update(&mut self, rtt_ns: u64) {
        self.current_ns = self.current_ns.min(rtt_ns);
    }

    pub(super) fn end_period(&mut self) {
        self.last_ns = core::mem::replace(&mut self.current_ns, u64::MAX);
    }

    /// `None` if nothing was timed.
    pub(super) fn get(&self) -> Option<u64> {
        let shortest = self.current_ns.min(self.last_ns);
        (shortest < u64::MAX).then_some(shortest)
    }
}

/// The shortest round trip over a longer time, to be measured anew when it is old.
#[derive(Debug)]
pub(super) struct MinRtt {
    ns: Option<u64>,
    seen: Time,
}

impl MinRtt {
    pub(super) fn new(now: Time) -> MinRtt {
        MinRtt { ns: None, seen: now }
    }

    pub(super) fn get(&self) -> Option<u64> {
        self.ns
    }

    /// A queue of up to a thirty-second of it counts as none: the path is as empty as it gets.
    pub(super) fn update(&mut self, now: Time, rtt_ns: u64) {
        if self.ns.is_none_or(|min| rtt_ns <= min.saturating_add(min / 32)) {
            self.ns = Some(self.ns.map_or(rtt_ns, |min| min.min(rtt_ns)));
            self.seen = now;
        }
    }

    pub(super) fn age_ns(&self, now: Time) -> u64 {
        now.nanos_since(self.seen)
    }

    /// Accepts a measurement taken while the path was as empty as we can make it.
    pub(super) fn replace(&mut self, now: Time, rtt_ns: u64) {
        self.ns = Some(rtt_ns);
        self.seen = now;
    }
}
