//! Shared memory between the processes of a user on a host (`docs/shm.md`).
//!
//! A [`ShmPort`] has a UDP port below it and rings beside it. Each ring carries bursts from one
//! engine to another ([`ring`]); the writer creates it and passes it to the reader over a socket
//! ([`greeting`]). Engines without a ring are reached by UDP. Nothing that another process writes
//! is trusted before it has been copied and checked, and nothing outlives the processes that use
//! it.

mod bell;
mod greeting;
mod inbound;
mod outbound;
mod ring;
mod script;

#[cfg(test)]
mod mistaken_tests;
#[cfg(test)]
mod ring_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use bowline_nic::{Burst, CleanPaths, Time, TxBatch};

use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds, earlier};
use crate::sys::{Epoll, EventFd, SeqPacket, descriptor_limit, effective_uid, overflow_uid};
use crate::udp::Multicasts;
use crate::udp::UdpPort;
use inbound::Inbound;
use outbound::{Outbound, Sent};
use ring::Record;
#[doc(hidden)]
pub use script::play_hostile_ring;

/// A ring's capacity: some bursts, little enough to stay in a core's own cache.
const RING_BYTES: usize = 1 << 20;
/// Most rings that a port reads from, and likewise that it writes to.
const MAX_CHANNELS: usize = 256;
/// Of how many descriptors a port's rings take one, each way: the others are the program's.
const DESCRIPTORS_SHARE: usize = 8;
/// How often connections are polled while the port does not sleep.
const SERVICE_NS: u64 = 100_000;
/// How soon to check again when a ring is full.
const RECHECK_NS: u64 = 20_000;
/// How often the UDP socket is polled while it is silent and there are rings: a poll costs a system
/// call.
const UDP_NS: u64 = 20_000;
/// The socket is silent if nothing has arrived for this long.
const UDP_SILENT_NS: u64 = 1_000_000;
/// Most drains of the UDP socket before a ring's first burst is read.
const MAX_DRAINS: usize = 64;
/// How long to stop listening after an accept failed for lack of descriptors.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// Tokens of the descriptors besides connections; connection numbers start after these.
const LISTENER: u64 = 0;
const NUDGE: u64 = 1;
const FIRST_ID: u64 = 2;

/// A port that reaches processes of the same user on this host through memory, and all others by
/// UDP.
pub struct ShmPort {
    via: &'static str,
    udp: UdpPort,
    epoll: Epoll,
    listener: SeqPacket,
    /// When to listen again, if listening was paused.
    listen_again: Option<Time>,
    /// Readable from a receive until the port is about to sleep again. A thread that sleeps on the
    /// port meanwhile then goes through [`Port::before_sleep`] again, because the receive has
    /// cancelled the wake-ups.
    nudge: EventFd,
    inbound: Inbound,
    outbound: Outbound,
    new_id: u64,
    /// The rings' readers are marked as asleep.
    slept: bool,
    next_service: Time,
    next_udp: Time,
    /// When a frame last arrived by UDP.
    udp_heard: Time,
    /// When to check a full ring again.
    recheck: Option<Time>,
    counters: Counters,
}

/// Counters of the rings.
#[derive(Clone, Copy, Default)]
struct Counters {
    tx_bursts: u64,
    tx_packets: u64,
    tx_bytes: u64,
    paused: u64,
    rx_bursts: u64,
    rx_frames: u64,
    rx_bytes: u64,
    peers: u64,
    wakes: u64,
    refused: u64,
    drop_stalled: u64,
    drop_gone: u64,
}

/// What a port with rings has besides its UDP port.
pub(crate) struct Meeting {
    epoll: Epoll,
    listener: SeqPacket,
    nudge: EventFd,
}

impl Meeting {
    /// Listens for the rings of a UDP port that other processes may share.
    pub(crate) fn open(udp: &UdpPort) -> Result<Meeting, PortError> {
        let (caps, prefix) = (udp.caps(), udp.qpn_prefix());
        let unsupported =
            |what| Err(PortError::Os { what, source: io::ErrorKind::Unsupported.into() });
        if prefix == 0 {
            return unsupported("shared memory needs an address that processes of this user share");
        }
        let me = effective_uid();
        if me == overflow_uid() {
            return unsupported(
                "shared memory needs a user ID of its own: this one is everybody's that the user \
                 namespace does not map",
            );
        }
        let name = greeting::name_of(me, (caps.addr, caps.udp_port, prefix));
        let listener =
            SeqPacket::listen(&name).map_err(PortError::os("listening for shared memory"))?;
        let epoll = Epoll::new().map_err(PortError::os("waiting for shared memory"))?;
        let nudge = EventFd::flag().map_err(PortError::os("waiting for shared memory"))?;
        epoll
            .add(listener.as_raw_fd(), LISTENER)
            .and_then(|()| epoll.add(nudge.as_raw_fd(), NUDGE))
            .map_err(PortError::os("waiting for shared memory"))?;
        Ok(Meeting { epoll, listener, nudge })
    }
}

/// How many rings a port may read from now, and likewise write to.
fn max_channels() -> usize {
    channels_within(descriptor_limit())
}

fn channels_within(descriptors: usize) -> usize {
    MAX_CHANNELS.min(descriptors / DESCRIPTORS_SHARE)
}

impl ShmPort {
    /// Adds rings to a UDP port that other processes may share. `detail` is called for each engine
    /// on this host without a ring.
    pub fn new(udp: UdpPort, detail: fn(&str)) -> Result<ShmPort, PortError> {
        let meeting = Meeting::open(&udp)?;
        Ok(ShmPort::with(udp, meeting, "shm", detail))
    }

    /// A port that calls itself `via`.
    pub(crate) fn with(
        udp: UdpPort,
        meeting: Meeting,
        via: &'static str,
        detail: fn(&str),
    ) -> ShmPort {
        let (caps, prefix) = (udp.caps(), udp.qpn_prefix());
        let Meeting { epoll, listener, nudge } = meeting;
        let own = (caps.addr, caps.udp_port, prefix);
        ShmPort {
            via,
            inbound: Inbound::new(caps.addr, prefix),
            outbound: Outbound::new(own, listener.network(), detail),
            udp,
            epoll,
            listener,
            listen_again: None,
            nudge,
            new_id: FIRST_ID,
            slept: false,
            next_service: Time::ZERO,
            next_udp: Time::ZERO,
            udp_heard: Time::ZERO,
            recheck: None,
            counters: Counters::default(),
        }
    }

    /// The prefix that every QPN of this port's engine must have.
    pub fn qpn_prefix(&self) -> u8 {
        self.udp.qpn_prefix()
    }

    #[inline]
    fn ring_to(&mut self, now: Time, burst: &Burst) -> Option<usize> {
        self.outbound.route(now, burst.peer(), &mut self.new_id, &self.epoll)
    }

    /// Writes a burst to a ring; returns `false` if it has to wait.
    #[inline]
    fn write(&mut self, now: Time, at: usize, burst: &Burst, bytes: &[u8]) -> bool {
        let record = Record {
            bytes: burst.bytes,
            segment_len: burst.segment_len,
            tos: burst.tos,
            summed: burst.is_summed(),
        };
        let packets = burst.packet_count() as u64;
        match self.outbound.write(now, at, &record, bytes) {
            Sent::Taken => {
                self.counters.tx_bursts += 1;
                self.counters.tx_packets += packets;
                self.counters.tx_bytes += u64::from(burst.bytes);
            }
            Sent::Full => {
                self.counters.paused += 1;
                self.recheck = Some(now.plus_nanos(RECHECK_NS));
                return false;
            }
            Sent::Stalled => self.counters.drop_stalled += packets,
            Sent::Gone => self.counters.drop_gone += packets,
        }
        true
    }

    /// Sends bursts without a ring by UDP, from `next` on; returns how many, and whether more can
    /// follow.
    fn send_by_udp(
        &mut self,
        now: Time,
        batch: &TxBatch,
        next: usize,
    ) -> Result<(usize, bool), PortError> {
        let bursts = &batch.bursts()[next..];
        if !bursts[0].is_summed() {
            // Made for a ring that is gone: no other receiver accepts a packet without an ICRC.
            self.counters.drop_gone += bursts[0].packet_count() as u64;
            return Ok((1, true));
        }
        let mut count = 1;
        while let Some(burst) = bursts.get(count)
            && burst.is_summed()
            && self.ring_to(now, burst).is_none()
        {
            count += 1;
        }
        let taken = self.udp.send_range(now, batch, next..next + count)?;
        Ok((taken, taken == count))
    }

    /// Services the connections.
    #[cold]
    fn service(&mut self, now: Time) {
        self.next_service = now.plus_nanos(SERVICE_NS);
        for token in self.epoll.ready() {
            match token {
                NUDGE => {}
                LISTENER => {
                    let (listener, epoll) = (&self.listener, &self.epoll);
                    if self.inbound.accept(now, listener, &mut self.new_id, epoll).is_err() {
                        // Otherwise it stays readable and nobody can sleep.
                        self.epoll.remove(self.listener.as_raw_fd());
                        self.listen_again = Some(now.plus_nanos(ACCEPT_PAUSE_NS));
                    }
                }
                id => {
                    self.inbound.hear(id, &mut self.counters);
                    self.outbound.hear(now, id, &mut self.counters);
                }
            }
        }
        if self.listen_again.is_some_and(|at| now >= at)
            && self.epoll.add(self.listener.as_raw_fd(), LISTENER).is_ok()
        {
            self.listen_again = None;
        }
        self.inbound.tire(now);
        self.outbound.tire(now);
    }

    /// Receives from the UDP socket, if it is due.
    #[inline]
    fn recv_by_udp(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        if now < self.next_udp {
            return Ok(0);
        }
        let frames = self.udp.recv(now, sink)?;
        if frames > 0 {
            self.udp_heard = now;
        }
        let silent = now.nanos_since(self.udp_heard) > UDP_SILENT_NS && !self.inbound.is_empty();
        self.next_udp = if silent { now.plus_nanos(UDP_NS) } else { now };
        Ok(frames)
    }

    /// Receives everything that arrived by UDP before the writer had its ring: delivered after the
    /// ring's contents, it would look like loss.
    #[cold]
    fn drain_udp(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        let mut frames = 0;
        for _ in 0..MAX_DRAINS {
            match self.udp.recv(now, sink)? {
                0 => break,
                count => frames += count,
            }
        }
        Ok(frames)
    }
}

impl Port for ShmPort {
    fn caps(&self) -> PortCaps {
        PortCaps { via: self.via, shares_memory: true, ..self.udp.caps() }
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.recheck = None;
        let bursts = batch.bursts();
        let mut next = from;
        while let Some(burst) = bursts.get(next) {
            // A burst partly sent by UDP is completed there.
            let begun = next == from && self.udp.is_amid_burst();
            let goes_on = match self.ring_to(now, burst).filter(|_| !begun) {
                Some(at) => {
                    let taken = self.write(now, at, burst, batch.burst_bytes(burst));
                    next += usize::from(taken);
                    taken
                }
                None => {
                    let (taken, goes_on) = self.send_by_udp(now, batch, next)?;
                    next += taken;
                    goes_on
                }
            };
            if !goes_on {
                break;
            }
        }
        self.outbound.wake_readers(&mut self.counters);
        Ok(next.saturating_sub(from))
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        if self.slept {
            self.slept = false;
            self.inbound.get_up();
            self.nudge.raise();
            self.service(now);
        } else if now >= self.next_service {
            self.service(now);
        }
        let mut frames = 0;
        if self.inbound.has_fresh() {
            frames += self.drain_udp(now, sink)?;
        }
        frames += self.inbound.read(sink, &mut self.counters);
        frames += self.recv_by_udp(now, sink)?;
        Ok(frames)
    }

    fn poll_timeout(&self) -> Option<Time> {
        earlier(earlier(self.udp.poll_timeout(), self.recheck), self.listen_again)
    }

    fn before_sleep(&mut self) -> bool {
        self.nudge.take();
        self.next_udp = Time::ZERO;
        self.slept = self.inbound.lie_down();
        self.slept
    }

    fn fds(&self) -> PortFds {
        let mut fds = self.udp.fds();
        fds.read[2] = Some(self.epoll.as_raw_fd());
        if self.recheck.is_some() {
            // There is no descriptor for space in a ring.
            fds.write = None;
        }
        fds
    }

    fn clean_paths(&self) -> Option<&Arc<CleanPaths>> {
        self.outbound.clean()
    }

    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        self.udp.multicasts()
    }

    fn counters(&self) -> PortCounters {
        let mut all = self.udp.counters();
        let ours = &self.counters;
        all.tx_bursts += ours.tx_bursts;
        all.tx_packets += ours.tx_packets;
        all.tx_bytes += ours.tx_bytes;
        all.tx_paused += ours.paused;
        all.rx_datagrams += ours.rx_bursts;
        all.rx_frames += ours.rx_frames;
        all.rx_bytes += ours.rx_bytes;
        all.shm_tx_bursts = ours.tx_bursts;
        all.shm_rx_frames = ours.rx_frames;
        all.shm_peers = ours.peers;
        all.shm_fallbacks = self.outbound.fallbacks();
        all.shm_wakes = ours.wakes;
        all.shm_refused = ours.refused;
        all.shm_drop_stalled = ours.drop_stalled;
        all.shm_drop_gone = ours.drop_gone;
        all
    }
}
