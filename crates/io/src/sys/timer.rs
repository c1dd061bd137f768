//! `timerfd`: a deadline that a thread can sleep until while others move it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use super::check;

/// A timer. Readable once it has expired, until it is set again.
#[derive(Debug)]
pub(crate) struct TimerFd {
    fd: OwnedFd,
}

impl TimerFd {
    /// A timer that is not set.
    pub(crate) fn new() -> io::Result<TimerFd> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: timerfd_create touches no memory of ours.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(TimerFd { fd })
    }

    /// Sets it to expire after a non-zero time, replacing the previous deadline.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec {
            it_interval: never,
            it_value: libc::timespec {
                tv_sec: after.as_secs().try_into().unwrap_or(i32::MAX.into()),
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel reads a live `itimerspec`, and is not asked for the old one.
        check(unsafe { libc::timerfd_settime(fd, 0, &raw const spec, ptr::null_mut()) }).map(|_| ())
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
