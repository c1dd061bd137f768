//! Ports in memory: for tests, and for engines within one process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_nic::{FrameMeta, IpId, Time, TxBatch, TxCaps};

use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use crate::sys::EventFd;

/// Frames handed out in one `recv`.
const MAX_FRAMES_PER_RECV: usize = 64;
const TTL: u8 = 64;

/// A network in memory: every port of a hub reaches every other by its address.
#[derive(Clone, Default)]
pub struct MemoryHub {
    inboxes: Arc<Mutex<Inboxes>>,
}

type Inboxes = HashMap<(IpAddr, u16), Arc<Inbox>>;

struct Inbox {
    queue: Mutex<VecDeque<(FrameMeta, Vec<u8>)>>,
    capacity: usize,
    dropped: AtomicU64,
    ready: EventFd,
}

/// A port of a [`MemoryHub`]. It never blocks: a full receiver drops, and counts what it drops.
pub struct MemoryPort {
    hub: MemoryHub,
    inbox: Arc<Inbox>,
    caps: PortCaps,
    counters: PortCounters,
}

impl MemoryHub {
    /// A hub without ports.
    pub fn new() -> MemoryHub {
        MemoryHub::default()
    }

    /// A port at an address that holds at most `capacity` received frames.
    pub fn port(
        &self,
        addr: IpAddr,
        udp_port: u16,
        capacity: usize,
    ) -> Result<MemoryPort, PortError> {
        let inbox = Arc::new(Inbox {
            queue: Mutex::new(VecDeque::new()),
            capacity,
            dropped: AtomicU64::new(0),
            ready: EventFd::flag().map_err(PortError::os("making an event descriptor"))?,
        });
        let mut inboxes = self.lock();
        if inboxes.contains_key(&(addr, udp_port)) {
            return Err(PortError::InUse { addr, udp_port, hint: "the hub has a port there" });
        }
        inboxes.insert((addr, udp_port), Arc::clone(&inbox));
        drop(inboxes);
        let caps = PortCaps {
            addr,
            udp_port,
            ip_mtu: 65_535,
            tx: TxCaps { max_segments: 64, max_burst_bytes: 65_507 },
            ecn: true,
            sees_ip_header: true,
            via: "memory",
        };
        Ok(MemoryPort { hub: self.clone(), inbox, caps, counters: PortCounters::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inboxes> {
        // Nothing panics under this lock: the map is whole even if it is poisoned.
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(FrameMeta, Vec<u8>)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, meta: FrameMeta, frame: Vec<u8>) {
        let mut queue = self.lock();
        if queue.len() >= self.capacity {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back((meta, frame));
        if queue.len() == 1 {
            self.ready.raise();
        }
    }

    fn take(&self) -> io::Result<(FrameMeta, Vec<u8>)> {
        let mut queue = self.lock();
        let next = queue.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        if queue.is_empty() {
            self.ready.take();
        }
        Ok(next)
    }
}

impl Port for MemoryPort {
    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn send(&mut self, _now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        for burst in bursts {
            let to = self.hub.lock().get(&(burst.dst, burst.dst_port)).cloned();
            let Some(to) = to else {
                self.counters.tx_drop_unreachable += burst.packet_count() as u64;
                continue;
            };
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let frame = batch.bytes(packet).to_vec();
                let ip_id = if burst.dst.is_ipv4() { id as u16 } else { 0 };
                let meta = FrameMeta {
                    src: self.caps.addr,
                    dst: burst.dst,
                    src_port: self.caps.udp_port,
                    tos: burst.tos,
                    ttl: TTL,
                    ip_id: IpId::Known(ip_id),
                };
                to.put(meta, frame);
            }
            self.counters.tx_bursts += 1;
            self.counters.tx_packets += burst.packet_count() as u64;
            self.counters.tx_bytes += u64::from(burst.bytes);
        }
        Ok(bursts.len())
    }

    fn recv(&mut self, _now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        let mut frames = 0;
        while frames < MAX_FRAMES_PER_RECV
            && let Ok((meta, frame)) = self.inbox.take()
        {
            sink.frame(&meta, &frame);
            frames += 1;
            self.counters.rx_datagrams += 1;
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
        }
        Ok(frames)
    }

    fn fds(&self) -> PortFds {
        PortFds { read: [Some(self.inbox.ready.as_raw_fd()), None], write: None }
    }

    fn counters(&self) -> PortCounters {
        let rx_overflow = self.inbox.dropped.load(Ordering::Relaxed);
        PortCounters { rx_overflow, ..self.counters }
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.hub.lock().remove(&(self.caps.addr, self.caps.udp_port));
    }
}
