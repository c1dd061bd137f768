//! Tracks whether the application polls, in which case the lane's thread need not drive, and until
//! when the thread sleeps, so that a caller with an earlier deadline wakes it.
//!
//! Accesses are relaxed. State that sleeping depends on is written under the engine's lock, which
//! orders it; the rest is a guess at whether somebody polls, and a wrong guess costs some
//! microseconds.

use std::sync::atomic::{AtomicU64, Ordering};

use bowline_nic::Time;

use crate::word::Word;

#[cfg(test)]
mod tests;

/// Later than any time: a poll is in progress.
const AT_WORK: u64 = u64::MAX;

pub(super) struct Attendance<W = AtomicU64> {
    /// When polling was last seen, or [`AT_WORK`] while a poll is in progress; zero if never.
    last_seen: W,
    /// Until when the lane's thread sleeps; zero while it is awake or naps.
    sleeps_until: W,
}

impl<W: Word> Attendance<W> {
    pub(super) fn new() -> Attendance<W> {
        Attendance { last_seen: W::new(0), sleeps_until: W::new(0) }
    }

    /// A poll begins.
    #[inline]
    pub(super) fn come(&self) {
        self.last_seen.store(AT_WORK, Ordering::Relaxed);
    }

    /// A poll has ended at `until`.
    #[inline]
    pub(super) fn seen_until(&self, until: Time) {
        self.last_seen.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// A thread that has polled will not poll again. Returns whether to wake the lane's thread,
    /// which may rely on that polling.
    pub(super) fn leave(&self) -> bool {
        self.last_seen.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether somebody has polled within the last `takeover_ns`, or still does.
    #[inline]
    pub(super) fn is_attended(&self, now: Time, takeover_ns: u64) -> bool {
        let seen = self.last_seen.load(Ordering::Relaxed);
        seen != 0 && now.as_nanos().saturating_sub(seen) < takeover_ns
    }

    /// The lane's thread is about to sleep. Call under the engine's lock, so that a thread that
    /// changes the deadline afterwards sees this.
    pub(super) fn sleep(&self, until: Time) {
        self.sleeps_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// The lane's thread has slept.
    pub(super) fn wake(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
    }

    /// Whether the lane's thread would oversleep a deadline, so that the caller has to wake it.
    /// Call under the engine's lock.
    #[inline]
    pub(super) fn would_oversleep(&self, deadline: impl FnOnce() -> Option<Time>) -> bool {
        let until = self.sleeps_until.load(Ordering::Relaxed);
        let oversleeps = until != 0 && deadline().is_some_and(|d| d.as_nanos() < until);
        if oversleeps {
            // One wake-up is enough.
            self.wake();
        }
        oversleeps
    }
}
