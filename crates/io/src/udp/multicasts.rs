//! The multicast addresses that a port receives from and sends to.
//!
//! A port's own socket is bound to its address and receives no multicast, so every group has a
//! socket of its own. The port reads it together with its own, and passes what it receives through
//! a [`Translator`], which turns it into frames for the port's engine.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_nic::{FrameMeta, Time};

use super::rx_ring::RxRing;
use super::{UdpConfig, drops, meta_of, options};
use crate::port::{FrameSink, PortCounters, PortError};
use crate::registry::Rooms;
use crate::sys::Epoll;
use drops::Verdict;

/// Datagrams received at a time, of up to 64 KiB each.
const SLOTS: usize = 8;
/// Most groups of one port: each has a socket with a large buffer.
const MAX_GROUPS: usize = 64;

/// Turns frames to a multicast address into frames for the engine of the port that received them.
pub trait Translator: Send {
    /// Takes frames that arrived as one datagram, `frame_len` bytes each but the last, which may be
    /// shorter. Passes to `sink` what is for the engine. Returns how many frames that were.
    fn frames(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        bytes: &mut [u8],
        frame_len: usize,
        sink: &mut dyn FrameSink,
    ) -> usize;
}

/// A process on this host that receives a group: its address, and the prefix of its QPNs.
pub(crate) type Listener = (IpAddr, u8);

/// The multicast addresses of a port, to be changed by others than the thread that has the port.
pub struct Multicasts {
    config: UdpConfig,
    scope: u32,
    /// Whether there are inlets: most ports have none, and should not lock anything to learn it.
    has_inlets: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    inlets: Vec<Inlet>,
    /// Readable when an inlet is.
    epoll: Option<Epoll>,
    next: u64,
    /// Who receives what is sent to an address.
    audiences: HashMap<IpAddr, Vec<Listener>>,
}

/// A group that the port receives.
struct Inlet {
    number: u64,
    group: IpAddr,
    socket: UdpSocket,
    rx: RxRing,
    translator: Box<dyn Translator>,
    overflow_seen: u32,
}

impl Multicasts {
    pub(super) fn new(config: &UdpConfig, udp_port: u16, scope: u32) -> Multicasts {
        let config = UdpConfig { udp_port, ..config.clone() };
        Multicasts { config, scope, has_inlets: AtomicBool::new(false), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic leaves the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives a group from now on; returns a number for [`leave`](Multicasts::leave). Wake the
    /// lane afterwards: it may be sleeping on the other sockets alone.
    ///
    /// # Errors
    /// If the kernel refuses, or the port receives too many groups.
    pub fn join(&self, group: IpAddr, translator: Box<dyn Translator>) -> Result<u64, PortError> {
        let os = |source| PortError::Os { what: "joining a multicast group", source };
        let socket = options::bind_group(&self.config, group, self.scope).map_err(os)?;
        let mut state = self.state();
        if state.inlets.len() >= MAX_GROUPS {
            return Err(os(io::Error::other(format!("the port has {MAX_GROUPS} already"))));
        }
        if state.epoll.is_none() {
            state.epoll = Some(Epoll::new().map_err(os)?);
        }
        let number = state.next;
        if let Some(epoll) = &state.epoll {
            epoll.add(socket.as_raw_fd(), number).map_err(os)?;
        }
        state.next += 1;
        let rx = RxRing::new(SLOTS);
        state.inlets.push(Inlet { number, group, socket, rx, translator, overflow_seen: 0 });
        self.has_inlets.store(true, Ordering::Release);
        Ok(number)
    }

    /// Stops receiving a group.
    pub fn leave(&self, number: u64) {
        let mut state = self.state();
        // Closing the socket removes it from the set.
        state.inlets.retain(|inlet| inlet.number != number);
        self.has_inlets.store(!state.inlets.is_empty(), Ordering::Release);
    }

    /// Says which processes receive what the port sends to `group`, each by its address and the
    /// prefix of its QPNs. The port then waits for space in the sockets of those on this host.
    pub fn set_audience(&self, group: IpAddr, listeners: Vec<(IpAddr, u8)>) {
        self.state().audiences.insert(group, listeners);
    }

    /// Forgets who receives a group.
    pub fn forget_audience(&self, group: IpAddr) {
        self.state().audiences.remove(&group);
    }

    /// Calls `f` with those who receive what is sent to an address, if that is known.
    pub(crate) fn with_audience<R>(
        &self,
        group: IpAddr,
        f: impl FnOnce(&[Listener]) -> R,
    ) -> Option<R> {
        self.state().audiences.get(&group).map(|listeners| f(listeners))
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.has_inlets.load(Ordering::Acquire)
    }

    /// Readable when a group's socket is.
    pub(super) fn fd(&self) -> Option<RawFd> {
        if self.is_idle() {
            return None;
        }
        self.state().epoll.as_ref().map(Epoll::as_raw_fd)
    }

    /// Receives from all groups. Returns the number of datagrams, and that of frames.
    pub(super) fn recv(
        &self,
        now: Time,
        rooms: Option<&Rooms>,
        counters: &mut PortCounters,
        sink: &mut dyn FrameSink,
    ) -> (usize, usize) {
        let (mut datagrams, mut frames) = (0, 0);
        for inlet in &mut self.state().inlets {
            let received = inlet.receive(counters);
            datagrams += received;
            for slot in 0..received {
                frames += inlet.deliver(now, slot, rooms, counters, sink);
            }
        }
        counters.rx_frames += frames as u64;
        (datagrams, frames)
    }
}

impl Inlet {
    fn receive(&mut self, counters: &mut PortCounters) -> usize {
        match self.rx.recv(self.socket.as_raw_fd()) {
            Ok(received) => received,
            Err(error) => {
                // Whatever is wrong with the group's socket, the port's own still works.
                if !matches!(drops::verdict(&error), Verdict::WouldBlock | Verdict::Again) {
                    counters.rx_errors += 1;
                }
                0
            }
        }
    }

    fn deliver(
        &mut self,
        now: Time,
        slot: usize,
        rooms: Option<&Rooms>,
        counters: &mut PortCounters,
        sink: &mut dyn FrameSink,
    ) -> usize {
        let message = self.rx.message(slot);
        super::note_overflow(&message, &mut self.overflow_seen, counters);
        let (len, frame_len) = (message.data.len(), message.segment_len);
        let meta = meta_of(&message, self.group);
        counters.rx_bytes += len as u64;
        if let Some(rooms) = rooms {
            rooms.took(len);
        }
        let Some(meta) = meta else {
            counters.rx_truncated += 1;
            return 0;
        };
        self.translator.frames(now, &meta, self.rx.bytes(slot), frame_len, sink)
    }
}
