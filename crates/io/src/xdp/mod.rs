//! A RoCEv2 port on an AF_XDP socket: whole frames between our memory and a queue of the NIC,
//! bypassing the kernel's network stack.
//!
//! It is for real NICs, whose drivers can DMA to and from that memory. An eBPF program on the
//! interface picks out RoCEv2 for our address and passes everything else to the kernel, so that the
//! host keeps the NIC. The program is detached when its process ends, however that happens.
//!
//! This port does what the kernel does for a UDP socket: headers, Ethernet addresses, checksums. In
//! return no part of a received packet is hidden, in particular not the IPv4 identification.

mod error;
mod frame;
mod options;
mod program;
mod resolve;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};

use bowline_nic::{Burst, Time, TxBatch, TxCaps};

use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use crate::sys::{
    Attached, BindMode, InterfaceQuery, MAX_FRAME, Neighbours, SocketMap, XdpProgram, XdpSocket,
    local_address, set_int,
};
use frame::{Ends, Own, Refusal};
pub use options::{XdpMode, XdpOptions};
use resolve::{Way, Ways};

/// Packets of a burst. A packet's IPv4 identification is its position in the burst, so that a
/// receiver behind a kernel that merges packets can tell their positions, as it does for UDP
/// senders.
const MAX_SEGMENTS: u16 = 64;
/// Most UDP payload in one burst; only the merging receiver's limit.
const MAX_BURST_BYTES: u32 = 65_487;
/// Frames delivered in one `recv`.
const MAX_FRAMES_PER_RECV: usize = 64;
/// How soon to check again for space to send.
const RECHECK_NS: u64 = 20_000;
/// The same while the interface is down.
const RECHECK_DOWN_NS: u64 = 10_000_000;
/// The kernel releases the queue of a closed socket with a delay.
const QUEUE_PATIENCE: Duration = Duration::from_millis(500);
const QUEUE_RETRY: Duration = Duration::from_millis(5);
const ETHERNET_LEN: usize = bowline_wire::EthernetHeader::MIN_LEN;

/// How an [`XdpPort`] is opened.
#[derive(Clone, Copy, Debug)]
pub struct XdpConfig {
    /// The address to receive for; the interface that has it is the NIC.
    pub addr: IpAddr,
    /// The UDP port to receive for, and to send from.
    pub udp_port: u16,
    /// How to use the NIC.
    pub options: XdpOptions,
}

/// A port on an AF_XDP socket. See the [contract](Port).
///
/// It has its address and UDP port to itself.
pub struct XdpPort {
    // Before the socket: once the program is detached, the kernel gets the frames again.
    _program: Attached,
    socket: XdpSocket,
    /// Keeps other sockets off the address and port. Frames that the NIC receives on another queue
    /// end here, and are not answered with "port unreachable".
    _claim: UdpSocket,
    ways: Ways<Neighbours>,
    own: Own,
    caps: PortCaps,
    /// The kernel has refused to send because the interface is down or gone.
    is_down: bool,
    /// When to call again even if nothing arrives.
    recheck: Option<Time>,
    counters: PortCounters,
}

impl XdpPort {
    /// Opens a port.
    pub fn open(config: &XdpConfig) -> Result<XdpPort, PortError> {
        let XdpConfig { addr, udp_port, options } = *config;
        if addr.is_unspecified() {
            return Err(PortError::Unspecified(addr));
        }
        let listing = PortError::os("listing network interfaces");
        let local = local_address(addr).map_err(listing)?.ok_or(PortError::NotLocal(addr))?;
        let name = local.interface.as_str();
        let query = InterfaceQuery::of(addr)
            .map_err(error::at(name, "asking about it"))?
            .ok_or(PortError::NotLocal(addr))?;
        let mac = query
            .ethernet_addr()
            .map_err(error::at(name, "asking for its address"))?
            .ok_or_else(|| {
                let hint = "use udp there, as on loopback".to_owned();
                error::unfit(name, "it is no Ethernet interface", hint)
            })?;
        let queue = choose_queue(name, query.receive_queues(), options.queue)?;
        let claim = claim(addr, udp_port)?;
        let udp_port =
            claim.local_addr().map_err(PortError::os("asking for the bound port"))?.port();
        let mode = match options.mode {
            XdpMode::Auto => BindMode::Any,
            XdpMode::Copy => BindMode::Copy,
            XdpMode::ZeroCopy => BindMode::ZeroCopy,
        };
        let socket = open_socket(local.index, queue, mode)
            .map_err(error::at(name, "opening a socket on its queue"))?;
        let neighbours = Neighbours::of(local.index)
            .map_err(PortError::os("opening a way to ask about neighbours"))?;
        let program = attach(&socket, local.index, queue, (addr, udp_port))
            .map_err(error::at(name, "attaching a program that takes out RoCEv2"))?;
        let caps = PortCaps {
            addr,
            udp_port,
            ip_mtu: local.mtu.min((MAX_FRAME - ETHERNET_LEN) as u32),
            tx: TxCaps { max_segments: MAX_SEGMENTS, max_burst_bytes: MAX_BURST_BYTES },
            ecn: true,
            sees_ip_header: true,
            shares_memory: false,
            via: if socket.is_zero_copy() { "xdp, zero-copy" } else { "xdp, copy" },
        };
        Ok(XdpPort {
            _program: program,
            socket,
            _claim: claim,
            ways: Ways::new(neighbours),
            own: Own { addr, mac, udp_port },
            caps,
            is_down: false,
            recheck: None,
            counters: PortCounters::default(),
        })
    }

    /// Whether `count` frames fit.
    fn has_room(&mut self, count: usize) -> bool {
        self.socket.room() >= count || {
            self.kick();
            self.socket.room() >= count
        }
    }

    /// Makes the kernel send what is pending.
    fn kick(&mut self) {
        let refused = self.socket.kick().err().and_then(|error| error.raw_os_error());
        self.is_down = matches!(refused, Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV));
    }

    fn push_burst(&mut self, batch: &TxBatch, burst: &Burst, dst_mac: [u8; 6]) {
        let own = &self.own;
        let ends = Ends {
            src: own.addr,
            dst: burst.dst,
            src_mac: own.mac,
            dst_mac,
            src_port: own.udp_port,
            dst_port: burst.dst_port,
        };
        let headers = frame::headers_len(burst.dst);
        for (ip_id, packet) in batch.packets(burst).iter().enumerate() {
            let bytes = batch.bytes(packet);
            let pushed = self.socket.push(headers + bytes.len(), |frame| {
                frame::write(frame, &ends, burst.tos, ip_id as u16, bytes);
            });
            if pushed {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += bytes.len() as u64;
            } else {
                self.counters.tx_drop_other += 1;
            }
        }
        self.counters.tx_bursts += 1;
    }

    /// Sends or drops one burst; returns `false` if it has to wait.
    fn send_burst(&mut self, now: Time, batch: &TxBatch, burst: &Burst) -> bool {
        let packets = burst.packet_count() as u64;
        let ip_len = frame::headers_len(burst.dst) - ETHERNET_LEN + burst.segment_len as usize;
        if burst.dst.is_ipv4() != self.own.addr.is_ipv4() {
            self.counters.tx_drop_unreachable += packets;
        } else if ip_len > self.caps.ip_mtu as usize {
            self.counters.tx_drop_too_long += packets;
        } else {
            match self.ways.to(now, burst.dst) {
                Way::To(mac) if self.has_room(burst.packet_count()) => {
                    self.push_burst(batch, burst, mac);
                }
                Way::To(_) if self.is_down => self.counters.tx_drop_unreachable += packets,
                Way::To(_) => {
                    self.recheck = Some(now.plus_nanos(RECHECK_NS));
                    return false;
                }
                Way::Wait(again) => {
                    self.recheck = Some(again);
                    return false;
                }
                Way::Unresolved => self.counters.tx_drop_unresolved += packets,
                Way::Unreachable => self.counters.tx_drop_unreachable += packets,
            }
        }
        true
    }

    /// Kicks frames that an earlier kick has left, and schedules another try.
    fn nudge(&mut self, now: Time) {
        if self.recheck.is_some_and(|at| at <= now) {
            self.recheck = None;
        }
        if self.socket.is_stalled() {
            self.kick();
            if self.socket.is_stalled() {
                let wait = if self.is_down { RECHECK_DOWN_NS } else { RECHECK_NS };
                self.recheck.get_or_insert(now.plus_nanos(wait));
            }
        }
    }
}

/// The queue to use, if it is unambiguous.
fn choose_queue(interface: &str, queues: u32, asked: Option<u32>) -> Result<u32, PortError> {
    match asked {
        Some(queue) => Ok(queue),
        None if queues == 1 => Ok(0),
        None => {
            let hint = format!(
                "leave it one by `ethtool -L {interface} combined 1`; or steer RoCEv2 to one by `ethtool -N \
                 {interface} flow-type udp4 dst-port 4791 action 0` and say queue=0"
            );
            Err(error::unfit(interface, "it receives by several queues", hint))
        }
    }
}

/// Takes the address and port exclusively.
fn claim(addr: IpAddr, udp_port: u16) -> Result<UdpSocket, PortError> {
    let socket = UdpSocket::bind((addr, udp_port)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => PortError::InUse {
            addr,
            udp_port,
            hint: "an AF_XDP port does not share its address, and another program receives RoCEv2 \
                   there (`ss -ulpn` names it); stop it, or use another address",
        },
        io::ErrorKind::AddrNotAvailable => PortError::NotLocal(addr),
        _ => PortError::Os { what: "claiming the UDP port", source },
    })?;
    // Nobody reads from it, so a minimal buffer will do.
    let _ = set_int(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
    Ok(socket)
}

/// A socket on a queue that its previous owner may have released only a moment ago.
fn open_socket(interface: u32, queue: u32, mode: BindMode) -> io::Result<XdpSocket> {
    let start = Instant::now();
    loop {
        match XdpSocket::open(interface, queue, mode) {
            Err(error) if is_busy(&error) && start.elapsed() < QUEUE_PATIENCE => {
                thread::sleep(QUEUE_RETRY);
            }
            opened => return opened,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Redirects RoCEv2 for the address to the socket.
fn attach(
    socket: &XdpSocket,
    interface: u32,
    queue: u32,
    (addr, udp_port): (IpAddr, u16),
) -> io::Result<Attached> {
    let map = SocketMap::new(queue.saturating_add(1))?;
    map.set(queue, socket.as_fd())?;
    XdpProgram::load(&program::program(addr, udp_port, map.as_fd()))?.attach(interface)
}

impl Port for XdpPort {
    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        let mut taken = 0;
        for burst in bursts {
            if !self.send_burst(now, batch, burst) {
                self.counters.tx_blocked += 1;
                break;
            }
            taken += 1;
        }
        self.kick();
        self.nudge(now);
        Ok(taken)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        self.nudge(now);
        let (own, counters) = (&self.own, &mut self.counters);
        let mut frames = 0;
        let received =
            self.socket.recv(MAX_FRAMES_PER_RECV, &mut |bytes| match frame::parse(bytes, own) {
                Ok((meta, packet)) => {
                    frames += 1;
                    counters.rx_bytes += packet.len() as u64;
                    sink.frame(&meta, packet);
                }
                Err(Refusal::Malformed) => counters.rx_malformed += 1,
                Err(Refusal::Foreign) => counters.rx_foreign += 1,
            });
        counters.rx_datagrams += received as u64;
        counters.rx_frames += frames as u64;
        Ok(frames)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.recheck
    }

    fn fds(&self) -> PortFds {
        // There is no descriptor for space to send: it also depends on completed chunks, which the
        // descriptor does not report.
        PortFds { read: [Some(self.socket.as_fd().as_raw_fd()), None, None, None], write: None }
    }

    fn counters(&self) -> PortCounters {
        let drops = self.socket.drops();
        PortCounters { rx_overflow: drops.rx, rx_truncated: drops.descriptors, ..self.counters }
    }
}
