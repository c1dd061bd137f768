//! Who is there: whether somebody polls, so that the lane's thread need not drive, and what the
//! thread sleeps until, so that whoever has something earlier wakes it.
//!
//! Words are relaxed. What sleeps depend on is said under the engine's lock, which orders it; the
//! rest is a guess of somebody's presence, and a wrong one costs some microseconds.

use std::sync::atomic::{AtomicU64, Ordering};

use bowline_nic::Time;

use crate::word::Word;

#[cfg(test)]
mod tests;

/// Later than any time: still there.
const AT_WORK: u64 = u64::MAX;

pub(super) struct Attendance<W = AtomicU64> {
    /// Until when somebody who polls has been seen at work, or [`AT_WORK`]; zero if nobody has.
    last_seen: W,
    /// What the lane's thread sleeps until; zero while it is awake or naps.
    sleeps_until: W,
}

impl<W: Word> Attendance<W> {
    pub(super) fn new() -> Attendance<W> {
        Attendance { last_seen: W::new(0), sleeps_until: W::new(0) }
    }

    /// Somebody begins to poll.
    #[inline]
    pub(super) fn come(&self) {
        self.last_seen.store(AT_WORK, Ordering::Relaxed);
    }

    /// Somebody has polled until then.
    #[inline]
    pub(super) fn seen_until(&self, until: Time) {
        self.last_seen.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Somebody who has polled will not poll again. Tells whether to wake the lane's thread, which
    /// may count on it.
    pub(super) fn leave(&self) -> bool {
        self.last_seen.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether somebody has polled within the last `takeover_ns`, or still does.
    #[inline]
    pub(super) fn is_attended(&self, now: Time, takeover_ns: u64) -> bool {
        let seen = self.last_seen.load(Ordering::Relaxed);
        seen != 0 && now.as_nanos().saturating_sub(seen) < takeover_ns
    }

    /// The lane's thread is about to sleep. To be called under the engine's lock: whoever changes
    /// the deadline afterwards sees it.
    pub(super) fn sleep(&self, until: Time) {
        self.sleeps_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// The lane's thread has slept.
    pub(super) fn wake(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
    }

    /// Whether the lane's thread would oversleep a deadline, so that the caller has to wake it. To
    /// be called under the engine's lock.
    #[inline]
    pub(super) fn would_oversleep(&self, deadline: impl FnOnce() -> Option<Time>) -> bool {
        let until = self.sleeps_until.load(Ordering::Relaxed);
        let oversleeps = until != 0 && deadline().is_some_and(|d| d.as_nanos() < until);
        if oversleeps {
            // Once is enough.
            self.wake();
        }
        oversleeps
    }
}
