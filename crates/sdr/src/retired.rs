//! When a message's place may be reused.

use std::collections::VecDeque;

use bowline_nic::Time;

/// Which of the peer's messages are over at the peer, and since when this is known.
///
/// A message's place may be reused when no packet of it can arrive any more: the peer has sent its
/// last, and the longest time that a packet may linger in the network has passed since. That the
/// message is complete here is not enough, since the peer may not know yet, and retransmit it.
#[derive(Debug)]
pub(crate) struct Retired {
    lateness: Lateness,
    /// Messages below this have been known to be over for longer than the lateness.
    settled: u64,
    /// When messages below each number became known to be over, in steps. Both grow.
    lately: VecDeque<(Time, u64)>,
}

/// How long packets may linger after the message that announces the end.
#[derive(Clone, Copy, Debug)]
enum Lateness {
    Fixed(u64),
    /// Derived from measurements of the path.
    Measured(u64),
}

/// Value before round trips have been compared, and upper bound.
const MAX_MEASURED_NS: u64 = 100_000_000;
/// Lower bound: queues other than those that were measured may be this long.
const MIN_MEASURED_NS: u64 = 10_000_000;
/// A packet may be later than any that was measured, but hardly by this factor.
const JITTERS: u64 = 4;
/// What was heard within a step counts as heard at its end: later is safe, earlier is not.
const STEP_NS: u64 = 1_000_000;
/// Steps kept: those of the longest measured lateness.
const MAX_STEPS: usize = 128;

impl Lateness {
    fn nanos(self) -> u64 {
        match self {
            Lateness::Fixed(ns) | Lateness::Measured(ns) => ns,
        }
    }
}

impl Retired {
    /// With a fixed lateness, or one to be measured.
    pub(crate) fn new(lateness_ns: Option<u64>) -> Retired {
        let lateness = lateness_ns.map_or(Lateness::Measured(MAX_MEASURED_NS), Lateness::Fixed);
        Retired { lateness, settled: 0, lately: VecDeque::new() }
    }

    /// Round trips have recently varied by this much: a packet can be that much later than another.
    pub(crate) fn hear_jitter(&mut self, jitter_ns: u64) {
        if let Lateness::Measured(lateness) = &mut self.lateness {
            *lateness = jitter_ns.saturating_mul(JITTERS).clamp(MIN_MEASURED_NS, MAX_MEASURED_NS);
        }
    }

    /// The peer will send nothing more of its messages below this one.
    pub(crate) fn hear(&mut self, now: Time, below: u64) {
        if below <= self.known() {
            return;
        }
        while let Some((at, below)) = self.lately.front().copied()
            && self.is_past(now, at)
        {
            self.settled = below;
            self.lately.pop_front();
        }
        // With a short lateness a step must not be most of it.
        let step = STEP_NS.min(self.lateness.nanos() / 8).max(1);
        let at = Time::from_nanos(now.as_nanos().next_multiple_of(step));
        let full = self.lately.len() == MAX_STEPS;
        match self.lately.back_mut() {
            Some(last) if last.0 == at || full => *last = (at, below),
            _ => self.lately.push_back((at, below)),
        }
    }

    /// Messages below this number are known to be over.
    pub(crate) fn known(&self) -> u64 {
        self.lately.back().map_or(self.settled, |(_, below)| *below)
    }

    /// Whether a message has been over for at least the lateness.
    pub(crate) fn is_settled(&self, now: Time, number: u64) -> bool {
        if number < self.settled {
            return true;
        }
        let old = self.lately.iter().take_while(|(at, _)| self.is_past(now, *at));
        number < old.last().map_or(self.settled, |(_, below)| *below)
    }

    fn is_past(&self, now: Time, at: Time) -> bool {
        now >= at.plus_nanos(self.lateness.nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn a_number_settles_when_it_has_been_known_for_the_lateness() {
        let mut retired = Retired::new(Some(10 * MS));
        retired.hear(at(MS / 2), 5);
        assert_eq!(retired.known(), 5);
        assert!(!retired.is_settled(at(10 * MS + MS / 2 - 1), 4), "early");
        assert!(retired.is_settled(at(11 * MS), 4));
        assert!(!retired.is_settled(at(1_000 * MS), 5), "nobody has said so");
    }

    /// A peer that reports every microsecond must not postpone the rest.
    #[test]
    fn hearing_often_delays_nothing_by_more_than_a_step() {
        for lateness in [0, 8, MS / 10, 10 * MS, 100 * MS] {
            let mut retired = Retired::new(Some(lateness));
            for us in 1..400_000u64 {
                retired.hear(at(us * 1_000), us);
                let due = (us * 1_000).saturating_sub(lateness + STEP_NS) / 1_000;
                assert!(due == 0 || retired.is_settled(at(us * 1_000), due - 1), "{lateness} {us}");
                let early = (us * 1_000).saturating_sub(lateness) / 1_000;
                assert!(!retired.is_settled(at(us * 1_000), early + 1), "{lateness} {us}");
            }
            assert!(retired.lately.len() <= MAX_STEPS);
        }
    }

    #[test]
    fn a_measured_lateness_follows_the_jitter_within_its_limits() {
        let mut retired = Retired::new(None);
        retired.hear(at(0), 1);
        let settles = |retired: &Retired| {
            (0..=200).find(|ms| retired.is_settled(at(ms * MS), 0)).expect("at some time")
        };
        assert_eq!(settles(&retired), 100, "nothing is known");
        retired.hear_jitter(MS);
        assert_eq!(settles(&retired), 10);
        retired.hear_jitter(5 * MS);
        assert_eq!(settles(&retired), 20);
        retired.hear_jitter(u64::MAX);
        assert_eq!(settles(&retired), 100);
        let mut fixed = Retired::new(Some(MS));
        fixed.hear(at(0), 1);
        fixed.hear_jitter(5 * MS);
        assert!(fixed.is_settled(at(MS), 0));
    }
}
