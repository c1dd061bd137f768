//! The interface between an engine and whatever carries its packets.

mod closed;
mod counters;
mod error;
mod forward;
mod outbox;
mod sink;

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use bowline_nic::{CleanPaths, Time, TxBatch, TxCaps};

use crate::fault::Faults;
use crate::sys::{PollFd, poll};
use crate::udp::Multicasts;
pub(crate) use closed::ClosedPort;
pub use counters::PortCounters;
pub use error::PortError;
pub use forward::{Forwarder, Onward, Round};
pub(crate) use outbox::Outbox;
pub use sink::FrameSink;

/// What a port is and can do. It does not change while the port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCaps {
    /// The address that packets leave from and arrive at.
    pub addr: IpAddr,
    /// The UDP port that they leave from and arrive at.
    pub udp_port: u16,
    /// The largest IP packet that the link carries.
    pub ip_mtu: u32,
    /// What one burst may hold: create every [`TxBatch`] for the port with this.
    pub tx: TxCaps,
    /// Whether ECN marks are sent and seen.
    pub ecn: bool,
    /// Whether the IPv4 identification of received frames is known.
    pub sees_ip_header: bool,
    /// Whether processes of this host may share memory instead of sending packets: not where
    /// packets are recorded, or delayed and lost on purpose.
    pub shares_memory: bool,
    /// What carries the packets, in human-readable form.
    pub via: &'static str,
}

/// File descriptors to sleep on. They belong to the port and are valid while it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFds {
    /// Readable when [`Port::recv`] has something.
    pub read: [Option<RawFd>; 4],
    /// Writable when [`Port::send`] would take something again.
    pub write: Option<RawFd>,
}

impl PortFds {
    /// Sleeps until [`Port::recv`] has something, or `timeout` has passed.
    pub fn wait_readable(&self, timeout: Duration) -> Result<(), PortError> {
        let mut fds: Vec<PollFd> =
            self.read.iter().flatten().map(|fd| PollFd::readable(*fd)).collect();
        wait(&mut fds, timeout)
    }

    /// Sleeps until [`Port::send`] would take something, or `timeout` has passed.
    pub fn wait_writable(&self, timeout: Duration) -> Result<(), PortError> {
        let mut fds: Vec<PollFd> = self.write.iter().map(|fd| PollFd::writable(*fd)).collect();
        wait(&mut fds, timeout)
    }
}

/// Sends and receives RoCEv2 packets in batches.
///
/// # Contract
///
/// * One thread at a time calls a port, with a `now` that never goes backwards and has the same
///   epoch in every call.
/// * No call blocks. A call with nothing to do returns.
/// * [`send`](Port::send) takes whole bursts, in order. When it takes fewer than offered, it would
///   have to block: the caller keeps the rest ([`TxBatch::forget`]) and offers it again, before
///   anything else, once [`PortFds::write`] is writable.
/// * A packet that can never be sent (no route, a firewall, too long) is dropped and counted by
///   cause. Network failures are not errors: a `PortError` from `send` or `recv` means that the
///   port is broken and will stay so.
/// * [`poll_timeout`](Port::poll_timeout) says when to call [`flush`](Port::flush) and `recv` even
///   if no descriptor is ready: middleware delays packets, shared ports check on their peers. It
///   may change with every call of another method.
/// * Before sleeping on the descriptors, call [`before_sleep`](Port::before_sleep), and do not
///   sleep if it returns `false`.
///
/// Middleware wraps a port and is itself a port: see [`Impair`](crate::Impair),
/// [`PcapTap`](crate::PcapTap) and [`FaultPort`](crate::FaultPort).
pub trait Port: Send {
    /// What the port can do.
    fn caps(&self) -> PortCaps;

    /// Sends the bursts of `batch` from index `from` on, and returns how many were taken.
    ///
    /// Dropped bursts count as taken. Payload is read only during the call.
    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError>;

    /// As [`send`](Port::send), for callers whose batch may be modified. What was not taken is
    /// restored before the call returns; what was taken may be left as it is then.
    fn send_mut(
        &mut self,
        now: Time,
        batch: &mut TxBatch,
        from: usize,
    ) -> Result<usize, PortError> {
        self.send(now, batch, from)
    }

    /// Passes received frames to `sink`, a bounded number of them, and returns how many.
    ///
    /// A frame's bytes are valid only during the call of `sink`. 0 means that nothing is pending.
    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError>;

    /// As [`recv`](Port::recv), for a caller that sends datagrams on. If the port can send them
    /// from where it has received them, it passes whole rounds.
    fn forward(&mut self, now: Time, to: &mut dyn Forwarder) -> Result<usize, PortError> {
        self.recv(now, to)
    }

    /// Sends packets that were held back and are due.
    fn flush(&mut self, now: Time) -> Result<(), PortError> {
        let _ = now;
        Ok(())
    }

    /// When to call [`flush`](Port::flush) and [`recv`](Port::recv) at the latest.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// The caller is about to sleep on the port's descriptors: from now on, arrivals make one of
    /// them readable. Returns `false` if something has arrived already.
    fn before_sleep(&mut self) -> bool {
        true
    }

    /// The descriptors to sleep on. Without any, the caller has to poll by the clock.
    fn fds(&self) -> PortFds;

    /// Destinations whose packets need no ICRC: set them on a batch before filling it
    /// ([`TxBatch::set_clean_paths`]). Middleware that may change packets has none.
    fn clean_paths(&self) -> Option<&Arc<CleanPaths>> {
        None
    }

    /// The port's counters.
    fn counters(&self) -> PortCounters;

    /// The handle for requesting faults, if the port contains a [`FaultPort`](crate::FaultPort).
    fn faults(&self) -> Option<&Faults> {
        None
    }

    /// The handle for joining multicast groups, if the port can.
    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        None
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn caps(&self) -> PortCaps {
        (**self).caps()
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        (**self).send(now, batch, from)
    }

    fn send_mut(
        &mut self,
        now: Time,
        batch: &mut TxBatch,
        from: usize,
    ) -> Result<usize, PortError> {
        (**self).send_mut(now, batch, from)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        (**self).recv(now, sink)
    }

    fn forward(&mut self, now: Time, to: &mut dyn Forwarder) -> Result<usize, PortError> {
        (**self).forward(now, to)
    }

    fn flush(&mut self, now: Time) -> Result<(), PortError> {
        (**self).flush(now)
    }

    fn poll_timeout(&self) -> Option<Time> {
        (**self).poll_timeout()
    }

    fn before_sleep(&mut self) -> bool {
        (**self).before_sleep()
    }

    fn fds(&self) -> PortFds {
        (**self).fds()
    }

    fn clean_paths(&self) -> Option<&Arc<CleanPaths>> {
        (**self).clean_paths()
    }

    fn counters(&self) -> PortCounters {
        (**self).counters()
    }

    fn faults(&self) -> Option<&Faults> {
        (**self).faults()
    }

    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        (**self).multicasts()
    }
}

fn wait(fds: &mut [PollFd], timeout: Duration) -> Result<(), PortError> {
    poll(fds, Some(timeout)).map(|_| ()).map_err(PortError::os("waiting for a port"))
}

/// The earlier of two deadlines, where `None` is never.
pub(crate) fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
