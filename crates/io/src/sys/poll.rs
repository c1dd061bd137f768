//! `ppoll`: sleeping on descriptors with a timeout in nanoseconds.

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use super::check;

/// A descriptor to sleep on, and the awaited event.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct PollFd(libc::pollfd);

impl PollFd {
    /// Until it is readable.
    pub(crate) fn readable(fd: RawFd) -> PollFd {
        PollFd(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// Until it is writable.
    pub(crate) fn writable(fd: RawFd) -> PollFd {
        PollFd(libc::pollfd { fd, events: libc::POLLOUT, revents: 0 })
    }
}

/// Sleeps until one of `fds` is ready, `timeout` has passed, or a signal came; returns whether one
/// is ready.
pub(crate) fn poll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<bool> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: t.subsec_nanos().into(),
    });
    let timeout_ptr = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `PollFd` is a transparent `pollfd`, the count is the slice's, and the timeout is null
    // or lives to the end of the function.
    let ready = unsafe {
        libc::ppoll(fds.as_mut_ptr().cast(), fds.len() as libc::nfds_t, timeout_ptr, ptr::null())
    };
    match check(ready) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}
