//! What the errors of a UDP socket mean for a port.

use std::io;

use crate::port::PortCounters;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing happened: call again.
    Again,
    /// No space, or nothing pending.
    WouldBlock,
    /// The kernel is short of memory.
    NoBuffers,
    /// A rule forbids the packet.
    Denied,
    /// There is no route to the destination, or the link is down.
    Unreachable,
    /// The packet is longer than the link's MTU.
    TooLong,
    /// The kernel rejects the packet's form; segmentation offload may be the reason.
    Refused,
    /// The payload's memory is not mapped.
    Fault,
    /// The socket itself is unusable.
    Broken,
    /// Something else about this packet.
    Other,
}

/// Classifies an error of a send or receive call.
pub(super) fn verdict(error: &io::Error) -> Verdict {
    match error.raw_os_error() {
        Some(libc::EINTR) => Verdict::Again,
        // EWOULDBLOCK is the same number on Linux.
        Some(libc::EAGAIN) => Verdict::WouldBlock,
        Some(libc::ENOBUFS | libc::ENOMEM) => Verdict::NoBuffers,
        Some(libc::EPERM | libc::EACCES) => Verdict::Denied,
        Some(
            libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENODEV
            | libc::ENXIO
            | libc::EADDRNOTAVAIL
            | libc::ECONNREFUSED,
        ) => Verdict::Unreachable,
        Some(libc::EMSGSIZE) => Verdict::TooLong,
        Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) => Verdict::Refused,
        Some(libc::EFAULT) => Verdict::Fault,
        Some(libc::EBADF | libc::ENOTSOCK | libc::EPIPE) => Verdict::Broken,
        _ => Verdict::Other,
    }
}

impl Verdict {
    /// Whether the same packets might be sent one by one.
    pub(super) fn suspects_offload(self) -> bool {
        matches!(self, Verdict::Refused | Verdict::TooLong)
    }

    /// Counts packets that were dropped for this reason.
    pub(super) fn count(self, counters: &mut PortCounters, packets: usize) {
        let counter = match self {
            Verdict::Denied => &mut counters.tx_drop_denied,
            Verdict::Unreachable => &mut counters.tx_drop_unreachable,
            Verdict::TooLong => &mut counters.tx_drop_too_long,
            Verdict::NoBuffers => &mut counters.tx_drop_no_buffers,
            Verdict::Fault => &mut counters.tx_drop_fault,
            _ => &mut counters.tx_drop_other,
        };
        *counter += packets as u64;
    }
}
