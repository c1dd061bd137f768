//! When a thread whose polls find nothing yields its core.

use bowline_nic::Time;

/// How long polls find nothing before the thread yields. A peer with its own core replies sooner;
/// one without waits for milliseconds.
const MAX_NS: u64 = 150_000;
/// The same where the peer turned out to wait for this very core.
const MIN_NS: u64 = 5_000;
/// A core that comes back later than this went to a CPU-bound thread.
const SLICE_NS: u64 = 500_000;
/// If the core comes back sooner than this, no other thread wanted it.
const NOBODY_NS: u64 = 2_000;

/// Whether to yield, learned from the outcome of earlier yields.
///
/// If the core comes back soon and something has arrived, the peer used it: the two share a core,
/// and yielding sooner makes both faster. If it comes back late, an unrelated thread used it, and
/// it is better not to yield.
pub(super) struct Patience {
    budget_ns: u64,
    /// When there was last something to do, or the core was yielded.
    since: Time,
    /// How long the core was away, if it was yielded since the last poll.
    away_ns: Option<u64>,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { budget_ns: MAX_NS, since: Time::ZERO, away_ns: None }
    }

    /// A poll has found something to do, or nothing (`idle`); the last packet left at `sent`.
    /// Returns whether to yield now.
    #[inline]
    pub(super) fn polled(&mut self, idle: bool, now: Time, sent: Time) -> bool {
        if let Some(away_ns) = self.away_ns.take() {
            self.learn(idle, away_ns);
        }
        let since = self.since.max(sent);
        let yields = idle && now.nanos_since(since) > self.budget_ns;
        if !idle || yields {
            self.since = now;
        }
        yields
    }

    #[cold]
    fn learn(&mut self, idle: bool, away_ns: u64) {
        if away_ns >= SLICE_NS {
            self.budget_ns = MAX_NS;
        } else if !idle && away_ns > NOBODY_NS {
            self.budget_ns = (self.budget_ns / 4).max(MIN_NS);
        }
    }

    /// The thread has yielded, and got its core back after `away_ns`.
    pub(super) fn yielded(&mut self, away_ns: u64) {
        self.away_ns = Some(away_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls every 100 ns until it yields, and returns how long that took.
    fn wait(patience: &mut Patience, now: &mut Time) -> u64 {
        let start = *now;
        loop {
            *now = now.plus_nanos(100);
            if patience.polled(true, *now, Time::ZERO) {
                return now.nanos_since(start);
            }
        }
    }

    #[test]
    fn a_peer_on_the_same_core_is_let_in_sooner_and_sooner() {
        let (mut patience, mut now) = (Patience::new(), Time::from_nanos(1));
        patience.polled(false, now, Time::ZERO);
        assert!(wait(&mut patience, &mut now) > MAX_NS - 200);
        for _ in 0..4 {
            patience.yielded(8_000);
            now = now.plus_nanos(8_000);
            assert!(!patience.polled(false, now, Time::ZERO), "there was something to do");
            wait(&mut patience, &mut now);
        }
        patience.yielded(8_000);
        patience.polled(false, now, Time::ZERO);
        assert!(wait(&mut patience, &mut now) < 2 * MIN_NS);
        // Then an unrelated thread runs.
        patience.yielded(3_000_000);
        patience.polled(false, now, Time::ZERO);
        assert!(wait(&mut patience, &mut now) > MAX_NS - 200);
    }

    #[test]
    fn a_core_that_nobody_wants_teaches_nothing() {
        let (mut patience, mut now) = (Patience::new(), Time::from_nanos(1));
        patience.polled(false, now, Time::ZERO);
        for _ in 0..8 {
            wait(&mut patience, &mut now);
            patience.yielded(400);
            patience.polled(false, now, Time::ZERO);
        }
        assert!(wait(&mut patience, &mut now) > MAX_NS - 200);
    }

    #[test]
    fn nobody_yields_while_there_is_something_to_do_or_just_was() {
        let (mut patience, mut now) = (Patience::new(), Time::from_nanos(1));
        for _ in 0..10_000 {
            now = now.plus_nanos(100_000);
            assert!(!patience.polled(false, now, Time::ZERO));
            assert!(!patience.polled(true, now, Time::ZERO));
        }
        let sent = now.plus_nanos(MAX_NS);
        assert!(!patience.polled(true, sent.plus_nanos(1000), sent), "it has just sent something");
    }
}
