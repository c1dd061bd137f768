//! Waits for many descriptors as one.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// A set of descriptors that can be waited for as one, each with a token.
pub(crate) struct Epoll {
    fd: OwnedFd,
}

/// Events taken in one call.
const MAX_EVENTS: usize = 16;

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: touches no memory.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        Ok(Epoll { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Also waits for `fd` to become readable, or for its other end to close. Closing `fd` removes
    /// it.
    pub(crate) fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        let epoll = self.fd.as_raw_fd();
        // SAFETY: the event is live.
        check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
        Ok(())
    }

    /// Stops waiting for `fd`.
    pub(crate) fn remove(&self, fd: RawFd) {
        let none = std::ptr::null_mut();
        // SAFETY: removal takes no event.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// Tokens of some descriptors that are ready now.
    pub(crate) fn ready(&self) -> impl Iterator<Item = u64> + use<> {
        let none = libc::epoll_event { events: 0, u64: 0 };
        let mut events = [none; MAX_EVENTS];
        let room = MAX_EVENTS as libc::c_int;
        // SAFETY: there is room for so many events.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr(), room, 0) };
        let count = usize::try_from(count).unwrap_or(0);
        events.into_iter().take(count).map(|event| event.u64)
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
