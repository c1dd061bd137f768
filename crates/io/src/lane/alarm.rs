//! What ends a nap of the lane's thread once nobody polls any more.
//!
//! Whoever polls puts the alarm off, by a call now and then. A thread that woke up to look for
//! itself would take some microseconds from the poller each time, on a small machine from its own
//! core.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_nic::Time;

use crate::sys::TimerFd;

/// Longest nap. A bound also on how long posts wait for a poll that does not come
/// ([`super::Lane::post`]).
const MAX_NAP_NS: u64 = 1_000_000;

pub(super) struct Alarm {
    timer: TimerFd,
    nap_ns: AtomicU64,
    /// When a poll has to put it off, in nanoseconds of the lane's clock; never while nobody naps.
    put_off_at: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let put_off_at = AtomicU64::new(u64::MAX);
        Ok(Alarm { timer: TimerFd::new()?, nap_ns: AtomicU64::new(0), put_off_at })
    }

    /// The lane's thread naps for so long, unless the alarm is put off. It will not be if nobody
    /// has polled for the second half of that.
    pub(super) fn set(&self, now: Time, nap_ns: u64) -> io::Result<()> {
        self.nap_ns.store(nap_ns, Ordering::Relaxed);
        self.timer.set(Duration::from_nanos(nap_ns.max(1)))?;
        self.put_off_at.store(now.as_nanos() + nap_ns / 2, Ordering::Relaxed);
        Ok(())
    }

    /// The nap is over. Returns how long another one right behind it may be.
    pub(super) fn clear(&self) -> u64 {
        self.put_off_at.store(u64::MAX, Ordering::Relaxed);
        self.longer_ns()
    }

    /// Somebody polls, or has just done so.
    #[inline]
    pub(super) fn put_off(&self, now: Time) {
        if now.as_nanos() >= self.put_off_at.load(Ordering::Relaxed) {
            self.set_later(now);
        }
    }

    #[cold]
    fn set_later(&self, now: Time) {
        // One that is not put off goes off early, no more.
        let _ = self.set(now, self.longer_ns());
    }

    /// An absence is noticed within a fraction of the time that the presence lasted.
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
