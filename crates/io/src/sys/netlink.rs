//! Netlink: the kernel's notifications of interface changes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// Notifications of interfaces that go up or down, lose or get a carrier. Readable while any are
/// pending.
#[derive(Debug)]
pub struct LinkNews {
    socket: OwnedFd,
}

impl LinkNews {
    /// Notifications from now on, for the calling thread's network namespace.
    pub fn open() -> io::Result<LinkNews> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` touches no memory.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: `sockaddr_nl` is a plain C struct for which zeroes are valid.
        let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        addr.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        addr.nl_groups = libc::RTMGRP_LINK as u32;
        let len = size_of_val(&addr) as libc::socklen_t;
        // SAFETY: reads `len` bytes of a live address.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const addr).cast(), len) })?;
        Ok(LinkNews { socket })
    }

    /// Consumes all pending notifications; returns whether there were any. The caller has to query
    /// what changed: notifications can be lost when many come at once.
    pub fn take(&self) -> bool {
        let mut any = false;
        loop {
            let mut first = 0_u8;
            // SAFETY: receives at most one byte into a live `u8`; the rest of the message is
            // dropped.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), (&raw mut first).cast(), 1, 0) };
            // An overflow counts as a notification, too.
            let lost = got < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            if got <= 0 && !lost {
                return any;
            }
            any = true;
        }
    }
}

impl AsRawFd for LinkNews {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::namespace::{enter_own_network, ip};
    use crate::sys::{PollFd, poll};

    #[test]
    fn an_interface_that_changes_is_news() {
        let in_a_namespace_of_its_own = || {
            if !enter_own_network() {
                return;
            }
            let news = LinkNews::open().unwrap();
            assert!(!news.take());
            if !ip("link set lo up") {
                eprintln!("skipped: `ip` is not there");
                return;
            }
            let mut set = [PollFd::readable(news.as_raw_fd())];
            assert!(poll(&mut set, Some(Duration::from_secs(5))).unwrap(), "nobody says so");
            assert!(news.take() && !news.take());
        };
        std::thread::spawn(in_a_namespace_of_its_own).join().unwrap();
    }
}
