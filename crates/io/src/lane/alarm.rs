//! The alarm that ends a nap of the lane's thread once nobody polls any more.
//!
//! A polling thread postpones the alarm by a system call now and then. If the lane's thread woke up
//! to check instead, each check would take microseconds from the poller, and on a small machine
//! from the poller's own core.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_nic::Time;

use crate::sys::TimerFd;

/// Longest nap. It also bounds how long posts wait for a poll that does not come
/// ([`super::Lane::post`]).
const MAX_NAP_NS: u64 = 1_000_000;

pub(super) struct Alarm {
    timer: TimerFd,
    nap_ns: AtomicU64,
    /// When a poll next has to postpone the alarm, on the lane's clock; never while the thread is
    /// not napping.
    put_off_at: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let put_off_at = AtomicU64::new(u64::MAX);
        Ok(Alarm { timer: TimerFd::new()?, nap_ns: AtomicU64::new(0), put_off_at })
    }

    /// The lane's thread naps for `nap_ns`, unless the alarm is postponed. It is not postponed if
    /// nobody polls in the second half of that time.
    pub(super) fn set(&self, now: Time, nap_ns: u64) -> io::Result<()> {
        self.nap_ns.store(nap_ns, Ordering::Relaxed);
        self.timer.set(Duration::from_nanos(nap_ns.max(1)))?;
        self.put_off_at.store(now.as_nanos() + nap_ns / 2, Ordering::Relaxed);
        Ok(())
    }

    /// The nap is over. Returns how long an immediately following nap may be.
    pub(super) fn clear(&self) -> u64 {
        self.put_off_at.store(u64::MAX, Ordering::Relaxed);
        self.longer_ns()
    }

    /// Somebody polls, or has just polled.
    #[inline]
    pub(super) fn put_off(&self, now: Time) {
        if now.as_nanos() >= self.put_off_at.load(Ordering::Relaxed) {
            self.set_later(now);
        }
    }

    #[cold]
    fn set_later(&self, now: Time) {
        // On failure the alarm merely goes off early.
        let _ = self.set(now, self.longer_ns());
    }

    /// Naps grow with the time that polling has lasted, so its end is noticed within a fraction of
    /// it.
    fn longer_ns(&self) -> u64 {
        let nap_ns = self.nap_ns.load(Ordering::Relaxed);
        (nap_ns + nap_ns / 4).min(MAX_NAP_NS)
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}
