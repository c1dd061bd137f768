//! A RoCEv2 port on a plain UDP socket, with segmentation offload both ways.
//!
//! The socket is not connected and sets DF: only then does the kernel number the packets of a
//! burst 0, 1, 2, … in the IPv4 identification, which the ICRC covers and which therefore has to be
//! known before the kernel writes it.

mod cmsg;
mod drops;
mod forward;
mod group;
mod multicasts;
mod options;
mod rx_ring;
mod tx_ring;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use bowline_nic::{FrameMeta, IpId, Time, TxBatch, TxCaps};

use crate::port::{
    Forwarder, FrameSink, Port, PortCaps, PortCounters, PortError, PortFds, earlier,
};
use crate::registry::{self, Membership, Owner, Place, Run};
use crate::sys::interface_of;
use drops::Verdict;
use forward::Datagrams;
pub use group::GroupSocket;
pub(crate) use multicasts::Listener;
pub use multicasts::{Multicasts, Translator};
use rx_ring::{Message, RxRing};
use tx_ring::TxRing;

/// Most UDP payload in one burst: an IP packet has at most 65,535 bytes, its headers included.
const MAX_BURST_BYTES_V4: u32 = 65_507;
const MAX_BURST_BYTES_V6: u32 = 65_487;

/// Most receive rounds before a socket is closed.
const MAX_REST: usize = 1024;
/// Rounds in which the port's own socket may come before those of groups.
const MAX_PASSED_OVER: u32 = 16;
/// How often to retry a burst when the kernel says that it is out of buffers.
const MAX_TRIES_WITHOUT_BUFFERS: u32 = 3;

/// Who else may use the address and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody: the port gets every frame, whatever its QPN.
    #[default]
    Exclusive,
    /// Other processes and ports of the same user: each owns the QPNs with one top byte
    /// ([`UdpPort::qpn_prefix`]), and the kernel steers frames by it.
    SameUser {
        /// Directory of the registry; by default `$XDG_RUNTIME_DIR`, or else shared memory. All
        /// that share an address must name the same one.
        ///
        /// If the default cannot be used (no shared memory, a full one, another user's directory
        /// under the name, a kernel that does not steer), the port takes the address for itself,
        /// and reports that ([`UdpConfig::notice`]). A directory that is named here must work.
        registry_dir: Option<PathBuf>,
    },
}

/// How a [`UdpPort`] is opened.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The address to bind to; it names the NIC.
    pub addr: IpAddr,
    /// The UDP port to bind to and to send from.
    pub udp_port: u16,
    /// Who else may use the address and port.
    pub sharing: Sharing,
    /// Receive buffer to ask for. The kernel may give less: see `net.core.rmem_max`.
    pub recv_buffer_bytes: u32,
    /// Send buffer to ask for. The kernel may give less: see `net.core.wmem_max`.
    pub send_buffer_bytes: u32,
    /// Use segmentation offload on send, where the kernel has it.
    pub gso: bool,
    /// Use receive offload, where the kernel has it.
    pub gro: bool,
    /// Most datagrams, of up to 64 KiB each, received in one system call. Memory that is never used
    /// is never touched.
    pub recv_slots: usize,
    /// Called with a sentence about anything that does not work as it should but is not essential.
    pub notice: fn(&str),
    /// Called with a sentence about anything that works but might be unexpected.
    pub detail: fn(&str),
}

impl UdpConfig {
    /// The defaults for a NIC at `addr`.
    pub fn new(addr: IpAddr) -> UdpConfig {
        UdpConfig {
            addr,
            udp_port: bowline_wire::ROCE_UDP_PORT,
            sharing: Sharing::Exclusive,
            recv_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            gso: true,
            gro: true,
            recv_slots: 32,
            notice: |_| {},
            detail: |_| {},
        }
    }
}

/// A port on a UDP socket. See the [contract](Port).
pub struct UdpPort {
    // Before `membership`, whose drop releases the locks that must outlive the socket.
    socket: UdpSocket,
    membership: Option<Box<Membership>>,
    caps: PortCaps,
    multicasts: Arc<Multicasts>,
    /// Rounds in which groups were not read, because more was waiting in the port's own socket.
    passed_over: u32,
    /// Interface index, for link-local IPv6 destinations.
    scope: u32,
    /// Offload works on the paths used so far. If not, the caps keep promising it, and bursts are
    /// sent packet by packet.
    gso_works: bool,
    /// Packets already sent of the first burst that the next `send` will be offered.
    resume_packet: usize,
    tx: TxRing,
    rx: RxRing,
    /// The kernel's wrapping count of overflows, as last reported.
    overflow_seen: u32,
    counters: PortCounters,
}

impl UdpPort {
    /// Opens a port.
    pub fn open(config: &UdpConfig) -> Result<UdpPort, PortError> {
        if config.addr.is_unspecified() {
            return Err(PortError::Unspecified(config.addr));
        }
        let interface = interface_of(config.addr)
            .map_err(PortError::os("listing network interfaces"))?
            .ok_or(PortError::NotLocal(config.addr))?;
        let (socket, membership) = match &config.sharing {
            Sharing::Exclusive => (options::bind(config, interface.index)?, None),
            Sharing::SameUser { .. } if config.udp_port == 0 => {
                return Err(PortError::Os {
                    what: "sharing a UDP port needs a fixed one",
                    source: io::ErrorKind::InvalidInput.into(),
                });
            }
            Sharing::SameUser { registry_dir } => {
                open_shared(config, interface.index, registry_dir.as_ref())?
            }
        };
        let udp_port =
            socket.local_addr().map_err(PortError::os("asking for the bound port"))?.port();
        let tx_caps = if config.gso { options::probe_gso(&socket) } else { None };
        let max_burst_bytes =
            if config.addr.is_ipv4() { MAX_BURST_BYTES_V4 } else { MAX_BURST_BYTES_V6 };
        let caps = PortCaps {
            addr: config.addr,
            udp_port,
            ip_mtu: interface.mtu,
            tx: TxCaps { max_segments: tx_caps.unwrap_or(1), max_burst_bytes },
            ecn: true,
            sees_ip_header: false,
            shares_memory: false,
            via: "udp",
        };
        Ok(UdpPort {
            socket,
            membership,
            caps,
            multicasts: Arc::new(Multicasts::new(config, udp_port, interface.index)),
            passed_over: 0,
            scope: interface.index,
            gso_works: true,
            resume_packet: 0,
            tx: TxRing::new(),
            rx: RxRing::new(config.recv_slots),
            overflow_seen: 0,
            counters: PortCounters::default(),
        })
    }

    /// The prefix that every QPN of this port's engine must have
    /// ([`NicConfig::qpn_prefix`](bowline_nic::NicConfig::qpn_prefix)).
    pub fn qpn_prefix(&self) -> u8 {
        self.membership.as_ref().map_or(0, |m| m.prefix())
    }

    #[cfg(test)]
    pub(crate) fn membership_for_test(&self) -> &Membership {
        self.membership.as_deref().expect("the port is shared")
    }

    #[cfg(test)]
    pub(crate) fn attach_for_test(&self, program: &[libc::sock_filter]) {
        use std::os::fd::AsFd;
        crate::sys::attach_group_program(self.socket.as_fd(), program).expect("it is valid");
    }

    /// Whether part of the burst that is offered next has been sent already.
    pub(crate) fn is_amid_burst(&self) -> bool {
        self.resume_packet > 0
    }

    /// Sends some bursts of a batch; returns how many were taken.
    pub(crate) fn send_range(
        &mut self,
        now: Time,
        batch: &TxBatch,
        range: Range<usize>,
    ) -> Result<usize, PortError> {
        let bursts = batch.bursts();
        let from = range.start;
        let room = match &mut self.membership {
            Some(membership) => {
                membership.rooms.admit(now, &bursts[range.clone()], &self.multicasts)
            }
            None => range.len(),
        };
        let end = from + room;
        let mut next = from;
        let mut tries = 0;
        while let Some(burst) = bursts[..end].get(next) {
            if self.resume_packet > 0 || (!self.gso_works && burst.packet_count() > 1) {
                if !self.send_split(batch, next)? {
                    break;
                }
                next += 1;
                continue;
            }
            match self.send_offloaded(batch, next..end) {
                Ok(sent) => {
                    next += sent;
                    tries = 0;
                }
                Err(error) => match drops::verdict(&error) {
                    Verdict::Again => {}
                    Verdict::WouldBlock => break,
                    Verdict::NoBuffers if tries < MAX_TRIES_WITHOUT_BUFFERS => tries += 1,
                    Verdict::Broken => {
                        return Err(PortError::Os {
                            what: "sending on the UDP socket",
                            source: error,
                        });
                    }
                    verdict if verdict.suspects_offload() && burst.packet_count() > 1 => {
                        if !self.send_suspect(batch, next)? {
                            break;
                        }
                        next += 1;
                    }
                    verdict => {
                        verdict.count(&mut self.counters, burst.packet_count());
                        next += 1;
                        tries = 0;
                    }
                },
            }
        }
        if next < end
            && let Some(membership) = &mut self.membership
        {
            membership.rooms.give_back(&bursts[next..end], &self.multicasts);
        }
        if end < range.end {
            self.counters.tx_paused += 1;
        } else if next < range.end {
            self.counters.tx_blocked += 1;
        }
        Ok(next.saturating_sub(from))
    }

    /// Sends bursts, many per system call; returns how many were taken.
    fn send_offloaded(&mut self, batch: &TxBatch, range: Range<usize>) -> io::Result<usize> {
        let from = range.start;
        let sent = self.tx.send_bursts(self.socket.as_raw_fd(), batch, range, self.scope)?;
        for burst in &batch.bursts()[from..from + sent] {
            self.counters.tx_packets += burst.packet_count() as u64;
            self.counters.tx_bytes += u64::from(burst.bytes);
        }
        self.counters.tx_bursts += sent as u64;
        Ok(sent)
    }

    /// Sends a burst packet by packet, from where the last try stopped; returns `false` if it would
    /// block.
    fn send_split(&mut self, batch: &TxBatch, at: usize) -> Result<bool, PortError> {
        let burst = &batch.bursts()[at];
        let mut tries = 0;
        while self.resume_packet < burst.packet_count() {
            let fd = self.socket.as_raw_fd();
            match self.tx.send_packets(fd, batch, burst, self.resume_packet, self.scope) {
                Ok(sent) => {
                    let packets = &batch.packets(burst)[self.resume_packet..][..sent];
                    self.counters.tx_packets += sent as u64;
                    self.counters.tx_bytes +=
                        packets.iter().map(|p| p.udp_payload_len() as u64).sum::<u64>();
                    self.resume_packet += sent;
                    tries = 0;
                }
                Err(error) => match drops::verdict(&error) {
                    Verdict::Again => {}
                    Verdict::WouldBlock => return Ok(false),
                    Verdict::NoBuffers if tries < MAX_TRIES_WITHOUT_BUFFERS => tries += 1,
                    Verdict::Broken => {
                        return Err(PortError::Os {
                            what: "sending on the UDP socket",
                            source: error,
                        });
                    }
                    verdict => {
                        verdict.count(&mut self.counters, 1);
                        self.resume_packet += 1;
                        tries = 0;
                    }
                },
            }
        }
        self.resume_packet = 0;
        self.counters.tx_bursts += 1;
        Ok(true)
    }

    /// After an error that offload may have caused: sends the burst without offload, and gives
    /// offload up if that works.
    fn send_suspect(&mut self, batch: &TxBatch, at: usize) -> Result<bool, PortError> {
        let sent_before = self.counters.tx_packets;
        let done = self.send_split(batch, at)?;
        if self.counters.tx_packets > sent_before {
            self.gso_works = false;
            self.counters.gso_fallbacks += 1;
        }
        Ok(done)
    }

    /// Receives what was sent to groups, after `received` datagrams from the port's own socket.
    /// Returns the number of datagrams, and that of frames.
    fn recv_groups(
        &mut self,
        now: Time,
        received: usize,
        sink: &mut dyn FrameSink,
    ) -> (usize, usize) {
        // Unicast packets of a group are repairs, and older than what was sent to the group since:
        // out of order they would be lost again. But a flood must not keep groups waiting for ever.
        if self.rx.was_full(received) && self.passed_over < MAX_PASSED_OVER {
            self.passed_over += 1;
            return (0, 0);
        }
        self.passed_over = 0;
        let rooms = self.membership.as_ref().map(|membership| &membership.rooms);
        self.multicasts.recv(now, rooms, &mut self.counters, sink)
    }

    /// Receives what is left in a socket that is about to be closed, so that other processes'
    /// frames are not lost with it.
    fn hand_on_rest(&mut self) {
        // Bounded: a peer may keep sending to this socket for ever.
        for _ in 0..MAX_REST {
            match self.rx.recv(self.socket.as_raw_fd()) {
                Ok(received @ 1..) => {
                    for slot in 0..received {
                        self.deliver(Time::ZERO, slot, &mut |_: &FrameMeta, _: &[u8]| {});
                    }
                }
                _ => return,
            }
        }
    }

    /// Receives datagrams into the ring; returns how many.
    fn receive(&mut self) -> Result<usize, PortError> {
        match self.rx.recv(self.socket.as_raw_fd()) {
            Ok(received) => Ok(received),
            Err(error) => match drops::verdict(&error) {
                Verdict::WouldBlock | Verdict::Again => Ok(0),
                Verdict::Broken => {
                    Err(PortError::Os { what: "receiving on the UDP socket", source: error })
                }
                // An error that an earlier packet of ours caused. Ignore it: the transport above
                // detects loss by itself.
                _ => {
                    self.counters.rx_errors += 1;
                    Ok(0)
                }
            },
        }
    }

    fn deliver(&mut self, now: Time, slot: usize, sink: &mut dyn FrameSink) -> usize {
        let message = self.rx.message(slot);
        let counters = &mut self.counters;
        note_overflow(&message, &mut self.overflow_seen, counters);
        let Some(meta) = meta_of(&message, self.caps.addr) else {
            counters.rx_truncated += 1;
            return 0;
        };
        counters.rx_bytes += message.data.len() as u64;
        let frames = match &mut self.membership {
            Some(m) => {
                m.rooms.took(message.data.len());
                sort_frames(now, m, &message, meta, counters, sink)
            }
            None => {
                sink.frames(&meta, message.data, message.segment_len);
                message.data.len().div_ceil(message.segment_len)
            }
        };
        counters.rx_frames += frames as u64;
        frames
    }
}

impl Drop for UdpPort {
    fn drop(&mut self) {
        if let Some(membership) = &mut self.membership {
            membership.leave(&self.socket);
            self.hand_on_rest();
        }
    }
}

/// A socket shared with other processes; or one alone on the address, if the default registry
/// cannot be used and no other process is there.
fn open_shared(
    config: &UdpConfig,
    scope: u32,
    registry_dir: Option<&PathBuf>,
) -> Result<(UdpSocket, Option<Box<Membership>>), PortError> {
    let place = Place {
        addr: config.addr,
        udp_port: config.udp_port,
        base_dir: registry_dir.cloned(),
        notice: config.notice,
    };
    match registry::join(&place, || options::bind(config, scope)) {
        Ok((socket, membership)) => Ok((socket, Some(Box::new(membership)))),
        Err(PortError::Registry(error)) if registry_dir.is_none() && error.lets_go_alone() => {
            let alone = UdpConfig { sharing: Sharing::Exclusive, ..config.clone() };
            match options::bind(&alone, scope) {
                Ok(socket) => {
                    let addr = config.addr;
                    (config.notice)(&format!("{error}; no other process can share {addr}"));
                    Ok((socket, None))
                }
                // Another process has the address: report why this one cannot share it.
                Err(PortError::InUse { .. }) => Err(error.into()),
                Err(other) => Err(other),
            }
        }
        Err(error) => Err(error),
    }
}

/// Delivers the frames of a datagram that are ours, and forwards the others to their owners.
/// Returns the number delivered.
fn sort_frames(
    now: Time,
    membership: &mut Membership,
    message: &Message<'_>,
    mut meta: FrameMeta,
    counters: &mut PortCounters,
    sink: &mut dyn FrameSink,
) -> usize {
    let mut delivered = 0;
    let mut rest = message.data;
    while let Some(frame) = rest.chunks(message.segment_len).next() {
        let owner = membership.owner_of(frame);
        let alike =
            rest.chunks(message.segment_len).take_while(|f| membership.owner_of(f) == owner);
        let count = alike.count();
        let (run, behind) = rest.split_at((count * message.segment_len).min(rest.len()));
        match owner {
            Owner::Us => {
                sink.frames(&meta, run, message.segment_len);
                delivered += count;
            }
            Owner::Probe => {
                for probe in run.chunks(message.segment_len) {
                    membership.on_probe(now, probe);
                }
            }
            Owner::Everybody => {
                sink.frames(&meta, run, message.segment_len);
                delivered += count;
                let of = Run { meta, segment_len: message.segment_len };
                membership.share(now, &of, run, counters);
            }
            Owner::Other(prefix) => {
                let of = Run { meta, segment_len: message.segment_len };
                membership.hand_on(now, prefix, &of, run, counters);
            }
        }
        meta.ip_id.skip(count);
        rest = behind;
    }
    delivered
}

/// Counts a datagram, and those that the socket had no space for.
fn note_overflow(message: &Message<'_>, seen: &mut u32, counters: &mut PortCounters) {
    if let Some(overflows) = message.overflows {
        counters.rx_overflow += u64::from(overflows.wrapping_sub(*seen));
        *seen = overflows;
    }
    counters.rx_datagrams += 1;
}

/// The envelope of a datagram's first frame; `None` if the datagram is unusable.
fn meta_of(message: &Message<'_>, dst: IpAddr) -> Option<FrameMeta> {
    let src = message.src.filter(|_| !message.truncated)?;
    let ip_id = if dst.is_ipv4() { IpId::Guess(0) } else { IpId::Known(0) };
    Some(FrameMeta {
        src: src.ip(),
        dst,
        src_port: src.port(),
        tos: message.tos,
        ttl: message.ttl,
        ip_id,
    })
}

impl Port for UdpPort {
    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.send_range(now, batch, from..batch.bursts().len())
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        let sent = self.membership.as_ref().map_or(0, |m| m.rooms.sent());
        let received = self.receive()?;
        let mut frames = (0..received).map(|slot| self.deliver(now, slot, sink)).sum();
        let of_groups = if self.multicasts.is_idle() {
            0
        } else {
            let (datagrams, of_groups) = self.recv_groups(now, received, sink);
            frames += of_groups;
            datagrams
        };
        if let Some(membership) = &mut self.membership {
            if received + of_groups == 0 {
                membership.rooms.drained(sent);
            }
            frames += membership.take_handed_in(now, &mut self.counters, sink);
            if now >= membership.next_due() {
                membership.upkeep(now, &self.socket, &mut self.counters);
            }
        }
        Ok(frames)
    }

    fn forward(&mut self, now: Time, to: &mut dyn Forwarder) -> Result<usize, PortError> {
        if !self.forwards_in_place() {
            return self.recv(now, to);
        }
        let count = self.receive()?;
        let mut frames = 0;
        for slot in 0..count {
            frames += self.count_kept(slot);
        }
        if count > 0 {
            to.round(&mut Datagrams { port: self, count });
        }
        Ok(frames)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let membership = self.membership.as_ref()?;
        let due = earlier(Some(membership.next_due()), membership.next_share());
        earlier(due, membership.rooms.recheck())
    }

    fn fds(&self) -> PortFds {
        let fd = Some(self.socket.as_raw_fd());
        let handover = self.membership.as_ref().map(|m| m.handover_fd());
        // There is no descriptor for space in another process's socket.
        let paused = self.membership.as_ref().is_some_and(|m| m.rooms.recheck().is_some());
        PortFds { read: [fd, handover, None, self.multicasts.fd()], write: fd.filter(|_| !paused) }
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        Some(&self.multicasts)
    }
}
