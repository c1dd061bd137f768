//! `eventfd`: a counter that a thread can sleep on together with sockets.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// A non-blocking event counter. Readable while it is not zero.
#[derive(Debug)]
pub(crate) struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A flag: one [`take`](EventFd::take) clears any number of raises.
    pub(crate) fn flag() -> io::Result<EventFd> {
        Self::new(0)
    }

    /// A semaphore: every raise allows one successful [`take`](EventFd::take).
    pub(crate) fn semaphore() -> io::Result<EventFd> {
        Self::new(libc::EFD_SEMAPHORE)
    }

    fn new(flags: libc::c_int) -> io::Result<EventFd> {
        // SAFETY: eventfd touches no memory of ours.
        let fd =
            check(unsafe { libc::eventfd(0, flags | libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventFd { fd })
    }

    /// Makes it readable.
    pub(crate) fn raise(&self) {
        let one = 1_u64;
        // SAFETY: writes 8 bytes from a live `u64`.
        // The only possible failure is a counter at its maximum, which is readable as wanted.
        let _ = unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Takes one event, or all of a flag's; `false` if there was none.
    pub(crate) fn take(&self) -> bool {
        let mut count = 0_u64;
        // SAFETY: reads at most 8 bytes into a live `u64`.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
