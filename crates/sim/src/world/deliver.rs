//! Packets between engines: out of a batch onto a link, over switches, into the next engine.

use bowline_link::{Arrival, Fate};
use bowline_nic::{FrameMeta, Time, TxBatch};
use bowline_wire::{ICRC_LEN, OpKind, Opcode, icrc_replace};

use super::host::{HostId, NicId, TxId};
use super::queue::EventKind;
use super::{Record, World};
use crate::net::{LinkId, NodeId, SWITCH_LATENCY_NS};
use crate::packet::{Packet, PacketId};

/// Hops of a fresh packet: more than any topology here needs, so that only a loop runs out.
const INITIAL_TTL: u8 = 64;

/// Bytes of IPv4 and UDP header behind the identification.
const BYTES_AFTER_IP_ID: usize = 14 + 8;

impl World {
    /// Sends all packets of a batch that `nic` filled.
    pub(super) fn transmit(&mut self, nic: NicId, batch: &TxBatch) {
        let host = &self.hosts[self.engines[nic.0].host.0];
        let node = host.node;
        let config = self.engines[nic.0].nic.config();
        let (src, src_port) = (config.addr, config.udp_port);
        for burst in batch.bursts() {
            let link = self.network.next_hop(node, burst.dst);
            for (index, tx) in batch.packets(burst).iter().enumerate() {
                let mut bytes = self.packets.buffer();
                bytes.extend_from_slice(batch.bytes(tx));
                let mut packet = Packet {
                    bytes,
                    src,
                    dst: burst.dst,
                    src_port,
                    dst_port: burst.dst_port,
                    tos: burst.tos,
                    ttl: INITIAL_TTL,
                    ip_id: if burst.dst.is_ipv4() { index as u16 } else { 0 },
                    digest: 0,
                };
                self.renumber(nic, &mut packet);
                packet.seal();
                self.stats.sent += 1;
                let digest = packet.digest;
                self.record(Record::Send, nic.0 as u64, digest, || {
                    format!("nic{} to {}: {}", nic.0, packet.dst, packet.describe())
                });
                self.check_sent(nic, &packet);
                let id = self.packets.insert(packet);
                self.stats.in_flight_peak = self.stats.in_flight_peak.max(self.packets.len());
                self.forward(link, id, 0);
            }
        }
    }

    /// Gives a packet the identification that a host which counts would, and the ICRC that goes
    /// with it.
    fn renumber(&mut self, nic: NicId, packet: &mut Packet) {
        let host = &mut self.hosts[self.engines[nic.0].host.0];
        if host.config.tx_id == TxId::Burst || packet.dst.is_ipv6() {
            return;
        }
        let (old, new) = (packet.ip_id, host.ip_id);
        host.ip_id = new.wrapping_add(1);
        let Some((body, icrc)) = packet.bytes.split_last_chunk_mut::<ICRC_LEN>() else { return };
        let bytes_after = BYTES_AFTER_IP_ID + body.len();
        let (from, to) = (old.to_be_bytes(), new.to_be_bytes());
        *icrc = icrc_replace(u32::from_le_bytes(*icrc), &from, &to, bytes_after).to_le_bytes();
        packet.ip_id = new;
    }

    fn check_sent(&mut self, nic: NicId, packet: &Packet) {
        let opcode = Opcode(packet.bytes.first().copied().unwrap_or(0));
        match opcode.info().map(|info| info.kind) {
            Some(OpKind::ReadRequest) => self.stats.reads_sent += 1,
            Some(OpKind::CompareSwap | OpKind::FetchAdd) => self.stats.atomics_sent += 1,
            _ => {}
        }
        if let Err(what) = crate::check::wire::check_sent(packet) {
            self.violate(format!("nic{} sent a bad packet: {what}: {}", nic.0, packet.describe()));
        }
    }

    /// Puts a packet on a link, after the time a switch takes to look at it.
    fn forward(&mut self, link: Option<LinkId>, id: PacketId, latency_ns: u64) {
        let Some(link) = link else {
            self.stats.unroutable += 1;
            self.packets.discard(id);
            return;
        };
        let at = self.now.plus_nanos(latency_ns);
        let packet = self.packets.get_mut(id);
        let digest = packet.digest;
        match self.network.send(at, link, packet) {
            Fate::QueueFull => {
                self.record(Record::QueueDrop, u64::from(link.0), digest, || {
                    format!("link{}: queue full, dropped", link.0)
                });
                self.packets.discard(id);
            }
            Fate::Lost => {
                let text = self.log.is_some().then(|| self.packets.get_mut(id).describe());
                self.record(Record::Lost, u64::from(link.0), digest, || {
                    format!("link{}: {}", link.0, text.unwrap_or_default())
                });
                self.packets.discard(id);
            }
            Fate::Arrives(Arrival { at, copy_at, .. }) => {
                let node = self.network.end_of(link);
                if let Some(copy_at) = copy_at {
                    let packet = self.packets.duplicate(id);
                    self.queue.push(copy_at, EventKind::Arrive { node, packet });
                }
                self.queue.push(at, EventKind::Arrive { node, packet: id });
            }
        }
    }

    /// A packet reaches a node. Returns the engine that handled it.
    pub(super) fn arrive(&mut self, node: NodeId, id: PacketId) -> Option<NicId> {
        let host = self.host_of_node.get(node.0 as usize).copied().flatten();
        let dst = self.packets.get_mut(id).dst;
        match host {
            Some(host) if self.network.addr_of(node) == Some(dst) => self.reach_host(host, id),
            _ => {
                let packet = self.packets.get_mut(id);
                packet.ttl = packet.ttl.saturating_sub(1);
                let alive = packet.ttl > 0;
                let link = self.network.next_hop(node, dst).filter(|_| alive);
                self.forward(link, id, SWITCH_LATENCY_NS);
                None
            }
        }
    }

    fn reach_host(&mut self, host: HostId, id: PacketId) -> Option<NicId> {
        if self.is_paused(host) {
            let host = &mut self.hosts[host.0];
            if host.ring.len() < host.config.ring_packets {
                host.ring.push_back(id);
            } else {
                self.stats.ring_drops += 1;
                self.packets.discard(id);
            }
            return None;
        }
        let coalesce_ns = self.hosts[host.0].config.coalesce_ns;
        if coalesce_ns == 0 {
            let nic = self.receive(host, id);
            self.hand_over();
            return Some(nic);
        }
        if self.hosts[host.0].ring.is_empty() {
            let at = self.now.plus_nanos(coalesce_ns);
            self.queue.push(at, EventKind::Gather { host });
        }
        self.hosts[host.0].ring.push_back(id);
        None
    }

    /// Takes a packet for the engine that its destination QPN's prefix names. It is handed over together
    /// with those behind it, as far as the host's port coalesces them.
    fn receive(&mut self, host: HostId, id: PacketId) -> NicId {
        let packet = self.packets.take(id);
        let host = &mut self.hosts[host.0];
        let coalesces = host.config.coalesce_ns > 0;
        let ip_id = host.ip_id_of(&packet);
        let prefix = packet.bytes.get(5).copied().unwrap_or(0);
        let nic = host
            .nics
            .iter()
            .copied()
            .find(|nic| self.engines[nic.0].nic.config().qpn_prefix == prefix)
            .unwrap_or(host.nics[0]);
        let meta = FrameMeta {
            src: packet.src,
            dst: packet.dst,
            src_port: packet.src_port,
            tos: packet.tos,
            ttl: packet.ttl,
            ip_id,
        };
        self.stats.delivered += 1;
        let digest = packet.digest ^ u64::from(packet.tos);
        self.record(Record::Deliver, nic.0 as u64, digest, || {
            let mark = if meta.congestion_experienced() { " marked" } else { "" };
            format!("nic{} {ip_id:?}{mark}: {}", nic.0, packet.describe())
        });
        if coalesces && self.gathered.takes(nic, &meta, &packet.bytes) {
            self.stats.coalesced += 1;
        } else {
            self.hand_over();
        }
        self.gathered.push(nic, meta, &packet.bytes);
        self.packets.recycle(packet);
        nic
    }

    /// Gives an engine what was gathered for it.
    fn hand_over(&mut self) {
        let Some(nic) = self.gathered.nic() else { return };
        let engine = &mut self.engines[nic.0];
        engine.touched = true;
        self.gathered.hand_over(self.now, &mut engine.nic);
    }

    /// A host handles nothing until `until`; what arrives meanwhile waits in its ring.
    pub fn pause(&mut self, host: HostId, until: Time) {
        let host_state = &mut self.hosts[host.0];
        if until <= host_state.paused_until.max(self.now) {
            return;
        }
        host_state.paused_until = until;
        self.stats.pauses += 1;
        self.queue.push(until, EventKind::Resume { host });
        self.record(Record::Pause, host.0 as u64, until.as_nanos(), || {
            format!("host{} until {until}", host.0)
        });
    }

    /// A pause ends: the ring is handled in one go, as a woken thread would.
    pub(super) fn resume(&mut self, host: HostId) {
        if self.is_paused(host) {
            return;
        }
        self.record(Record::Resume, host.0 as u64, 0, || format!("host{}", host.0));
        self.empty_ring(host);
    }

    /// Handles what waits in a host's ring.
    pub(super) fn empty_ring(&mut self, host: HostId) {
        while let Some(id) = self.hosts[host.0].ring.pop_front() {
            self.receive(host, id);
        }
        self.hand_over();
    }
}
