//! How long the lane's thread spins without work before it sleeps.

use std::time::Duration;

use bowline_nic::Time;

/// Consecutive fruitless spins after which the thread assumes that it keeps its peer from running.
const MAX_VAIN: u32 = 4;
/// It spins again after this many sleeps.
const RETRY_AFTER: u32 = 32;

/// How long to spin without work: less and less while spinning finds nothing. Without spinning,
/// packets at short intervals would find the thread asleep each time, and their sender would pay
/// for waking it.
///
/// Short sleeps suggest such packets, but do not prove them. Where both ends share a core, nothing
/// can arrive while this thread spins, and something arrives as soon as it sleeps: spinning then
/// only keeps the sender from its core. So a few fruitless spins stop spinning for a while, however
/// short the sleeps are.
pub(super) struct Spin {
    max_ns: u64,
    budget_ns: u64,
    last_work: Time,
    /// A round since the last work found nothing.
    idled: bool,
    /// Fruitless spins since the last that paid off.
    vain: u32,
}

impl Spin {
    pub(super) fn new(max: Duration) -> Spin {
        let max_ns = super::nanos(max);
        Spin { max_ns, budget_ns: max_ns, last_work: Time::ZERO, idled: false, vain: 0 }
    }

    /// A round had work to do.
    pub(super) fn worked(&mut self, now: Time) {
        if self.idled {
            // Spinning has paid off.
            self.budget_ns = self.max_ns;
            self.vain = 0;
        }
        self.idled = false;
        self.last_work = now;
    }

    /// A round had nothing to do; returns whether to keep spinning.
    pub(super) fn goes_on(&mut self, now: Time) -> bool {
        self.idled = true;
        now.nanos_since(self.last_work) < self.budget_ns
    }

    /// The thread has slept. A sleep shorter than the spin limit means that spinning might pay off.
    pub(super) fn slept(&mut self, from: Time, to: Time) {
        self.vain = if self.vain < RETRY_AFTER { self.vain + 1 } else { 0 };
        let was_short = to.nanos_since(from) < self.max_ns;
        self.budget_ns = if was_short && self.vain < MAX_VAIN {
            self.max_ns
        } else {
            (self.budget_ns / 2).max(self.max_ns / 8)
        };
        self.idled = false;
        self.last_work = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_NS: u64 = 40_000;

    /// A thread whose work comes `gap_ns` after the last, or only once it sleeps, and then at once.
    struct World {
        spin: Spin,
        now: Time,
        spun_ns: u64,
        sleeps: u32,
    }

    impl World {
        fn new() -> World {
            let now = Time::from_nanos(1);
            World { spin: Spin::new(Duration::from_nanos(MAX_NS)), now, spun_ns: 0, sleeps: 0 }
        }

        /// Spins until work comes after `gap_ns`, or sleeps and wakes up to work.
        fn wait(&mut self, gap_ns: Option<u64>) {
            let start = self.now;
            loop {
                self.now = self.now.plus_nanos(500);
                let idle_ns = self.now.nanos_since(start);
                if gap_ns.is_some_and(|gap_ns| idle_ns >= gap_ns) {
                    break;
                }
                if !self.spin.goes_on(self.now) {
                    let lay_down = self.now;
                    let left = gap_ns.map_or(1000, |gap_ns| gap_ns - idle_ns);
                    self.now = self.now.plus_nanos(left.max(1));
                    self.spin.slept(lay_down, self.now);
                    self.sleeps += 1;
                    break;
                }
            }
            self.spun_ns += self.now.nanos_since(start);
            self.spin.worked(self.now);
        }
    }

    #[test]
    fn work_at_short_intervals_is_waited_for() {
        let mut world = World::new();
        (0..1000).for_each(|_| world.wait(Some(20_000)));
        assert_eq!(world.sleeps, 0);
        // Also after a period of long gaps.
        (0..1000).for_each(|_| world.wait(Some(300_000)));
        let before = world.sleeps;
        (0..1000).for_each(|_| world.wait(Some(20_000)));
        assert!(world.sleeps - before < 64, "{} sleeps", world.sleeps - before);
    }

    #[test]
    fn a_peer_on_the_same_core_is_not_kept_from_it() {
        let mut world = World::new();
        (0..1000).for_each(|_| world.wait(None));
        assert_eq!(world.sleeps, 1000);
        // With the whole budget each time it would be 40 ms.
        assert!(world.spun_ns < 13_000_000, "{} ns", world.spun_ns);
    }

    #[test]
    fn work_at_long_intervals_is_slept_for() {
        let mut world = World::new();
        (0..1000).for_each(|_| world.wait(Some(300_000)));
        assert_eq!(world.sleeps, 1000);
    }
}
