//! Ports in memory: for tests, and for engines within one process.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_nic::{FrameMeta, IpId, Time, TxBatch, TxCaps};

use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use crate::sys::EventFd;

/// Frames delivered in one `recv`, rounded up to whole datagrams.
const MAX_FRAMES_PER_RECV: usize = 64;
/// Spare buffers that an inbox keeps for later datagrams.
const MAX_SPARE: usize = 64;
const TTL: u8 = 64;

/// A network in memory: every port of a hub reaches every other by its address. Ports may share an
/// address, each with a QPN prefix of its own, as the sockets of a host do.
#[derive(Clone, Default)]
pub struct MemoryHub {
    inboxes: Arc<Mutex<Inboxes>>,
}

/// A port's address, its UDP port, and the QPN prefix that it receives frames for, if not all.
type Place = (IpAddr, u16, Option<u8>);
type Inboxes = HashMap<Place, Arc<Inbox>>;

struct Inbox {
    queue: Mutex<Queue>,
    capacity: usize,
    dropped: AtomicU64,
    /// The port is gone.
    closed: AtomicBool,
    /// Every call on the port fails.
    broken: AtomicBool,
    /// The owner is about to sleep and wants a wake-up; one for every datagram would cost more than
    /// the rest.
    sleeps: AtomicBool,
    /// Readable while there are datagrams that a sleeper has not been told of.
    ready: EventFd,
}

#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Datagram>,
    frames: usize,
    /// Buffers of consumed datagrams, for reuse.
    spare: Vec<Vec<u8>>,
}

/// Frames of one burst.
struct Datagram {
    meta: FrameMeta,
    frame_len: usize,
    bytes: Vec<u8>,
}

impl Datagram {
    fn frames(&self) -> usize {
        self.bytes.len().div_ceil(self.frame_len.max(1))
    }
}

/// A port of a [`MemoryHub`]. It never blocks: a full receiver drops frames and counts them.
pub struct MemoryPort {
    hub: MemoryHub,
    place: Place,
    inbox: Arc<Inbox>,
    /// The last destination, most likely also the next.
    route: Option<(Place, Arc<Inbox>)>,
    /// Datagrams being delivered.
    taken: Vec<Datagram>,
    caps: PortCaps,
    counters: PortCounters,
}

impl MemoryHub {
    /// A hub without ports.
    pub fn new() -> MemoryHub {
        MemoryHub::default()
    }

    /// A port that has an address to itself, and holds at most `capacity` received frames.
    pub fn port(
        &self,
        addr: IpAddr,
        udp_port: u16,
        capacity: usize,
    ) -> Result<MemoryPort, PortError> {
        self.open((addr, udp_port, None), capacity)
    }

    /// A port for an engine whose QPNs have this prefix; other ports may share the address.
    pub fn port_for(
        &self,
        addr: IpAddr,
        udp_port: u16,
        prefix: u8,
        capacity: usize,
    ) -> Result<MemoryPort, PortError> {
        self.open((addr, udp_port, Some(prefix)), capacity)
    }

    /// Makes the ports of an address fail for good from now on, all of them or the one with a
    /// prefix: to test what happens to their users.
    pub fn break_ports(&self, addr: IpAddr, prefix: Option<u8>) {
        for ((_, _, of), inbox) in self.lock().iter().filter(|((at, ..), _)| *at == addr) {
            if prefix.is_none() || *of == prefix {
                inbox.broken.store(true, Ordering::Relaxed);
            }
        }
    }

    fn open(&self, place: Place, capacity: usize) -> Result<MemoryPort, PortError> {
        let (addr, udp_port, _) = place;
        let inbox = Arc::new(Inbox {
            queue: Mutex::default(),
            capacity,
            dropped: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            ready: EventFd::flag().map_err(PortError::os("making an event descriptor"))?,
        });
        let mut inboxes = self.lock();
        if inboxes.contains_key(&place) {
            return Err(PortError::InUse { addr, udp_port, hint: "the hub has a port there" });
        }
        inboxes.insert(place, Arc::clone(&inbox));
        drop(inboxes);
        let caps = PortCaps {
            addr,
            udp_port,
            ip_mtu: 65_535,
            tx: TxCaps { max_segments: 64, max_burst_bytes: 65_507 },
            ecn: true,
            sees_ip_header: false,
            shares_memory: false,
            via: "memory",
        };
        let (route, taken, counters) = (None, Vec::new(), PortCounters::default());
        Ok(MemoryPort { hub: self.clone(), place, inbox, route, taken, caps, counters })
    }

    fn lock(&self) -> MutexGuard<'_, Inboxes> {
        // Nothing panics under this lock: the map is whole even if it is poisoned.
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a datagram, or as much of it as fits.
    fn put(&self, meta: FrameMeta, bytes: &[u8], frame_len: usize) {
        let mut queue = self.lock();
        let frames = bytes.len().div_ceil(frame_len.max(1));
        let fit = frames.min(self.capacity.saturating_sub(queue.frames));
        if fit < frames {
            self.dropped.fetch_add((frames - fit) as u64, Ordering::Relaxed);
        }
        if fit == 0 {
            return;
        }
        let mut buffer = queue.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(&bytes[..bytes.len().min(fit * frame_len)]);
        queue.frames += fit;
        queue.datagrams.push_back(Datagram { meta, frame_len, bytes: buffer });
        drop(queue);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.ready.raise();
        }
    }

    /// Moves some datagrams to `to`, and reuses its old buffers.
    fn take(&self, to: &mut Vec<Datagram>) {
        let mut queue = self.lock();
        for datagram in to.drain(..) {
            if queue.spare.len() < MAX_SPARE {
                queue.spare.push(datagram.bytes);
            }
        }
        let mut frames = 0;
        while frames < MAX_FRAMES_PER_RECV
            && let Some(datagram) = queue.datagrams.pop_front()
        {
            frames += datagram.frames();
            to.push(datagram);
        }
        queue.frames -= frames;
    }

    /// The owner is about to sleep until its descriptor is readable.
    fn arm(&self) {
        self.ready.take();
        self.sleeps.store(true, Ordering::SeqCst);
        // Earlier datagrams raised no wake-up.
        if !self.lock().datagrams.is_empty() {
            self.ready.raise();
        }
    }
}

impl MemoryPort {
    fn check(&self) -> Result<(), PortError> {
        if self.inbox.broken.load(Ordering::Relaxed) {
            let source = std::io::Error::other("it was broken on purpose");
            return Err(PortError::Os { what: "using a port in memory", source });
        }
        Ok(())
    }

    fn route(&mut self, (addr, udp_port, prefix): (IpAddr, u16, u8)) -> Option<&Inbox> {
        let to = (addr, udp_port, Some(prefix));
        let known = self
            .route
            .as_ref()
            .is_some_and(|(place, inbox)| *place == to && !inbox.closed.load(Ordering::Relaxed));
        if !known {
            let inboxes = self.hub.lock();
            let inbox = inboxes.get(&to).or_else(|| inboxes.get(&(addr, udp_port, None)));
            self.route = inbox.map(|inbox| (to, Arc::clone(inbox)));
        }
        self.route.as_ref().map(|(_, inbox)| &**inbox)
    }
}

impl Port for MemoryPort {
    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn send(&mut self, _now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.check()?;
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        for burst in bursts {
            let meta = FrameMeta {
                src: self.caps.addr,
                dst: burst.dst,
                src_port: self.caps.udp_port,
                tos: burst.tos,
                ttl: TTL,
                // As from a socket: bursts are numbered from zero.
                ip_id: if burst.dst.is_ipv4() { IpId::Guess(0) } else { IpId::Known(0) },
            };
            let count = burst.packet_count() as u64;
            let Some(to) = self.route((burst.dst, burst.dst_port, burst.prefix())) else {
                self.counters.tx_drop_unreachable += count;
                continue;
            };
            to.put(meta, batch.burst_bytes(burst), burst.segment_len as usize);
            self.counters.tx_bursts += 1;
            self.counters.tx_packets += count;
            self.counters.tx_bytes += u64::from(burst.bytes);
        }
        Ok(bursts.len())
    }

    fn recv(&mut self, _now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        self.check()?;
        self.inbox.take(&mut self.taken);
        let mut frames = 0;
        for datagram in &self.taken {
            match datagram.frames() {
                1 => sink.frame(&datagram.meta, &datagram.bytes),
                _ => sink.frames(&datagram.meta, &datagram.bytes, datagram.frame_len),
            }
            frames += datagram.frames();
            self.counters.rx_datagrams += 1;
            self.counters.rx_bytes += datagram.bytes.len() as u64;
        }
        self.counters.rx_frames += frames as u64;
        Ok(frames)
    }

    fn fds(&self) -> PortFds {
        self.inbox.arm();
        PortFds { read: [Some(self.inbox.ready.as_raw_fd()), None, None, None], write: None }
    }

    fn counters(&self) -> PortCounters {
        let rx_overflow = self.inbox.dropped.load(Ordering::Relaxed);
        PortCounters { rx_overflow, ..self.counters }
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.inbox.closed.store(true, Ordering::Relaxed);
        self.hub.lock().remove(&self.place);
    }
}
