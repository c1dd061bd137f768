//! Packets between engines: out of a batch onto a link, over switches, into the next engine.

use core::net::IpAddr;

use bowline_nic::{FrameMeta, Time, TxBatch};
use bowline_wire::{FlowKey, ICRC_LEN, OpKind, Opcode, icrc_replace};

use super::World;
use super::host::{HostId, NicId, TxId};
use crate::event::Event;
use crate::net::{HostIndex, LinkId, NodeId};
use crate::packet::{Packet, PacketId};
use crate::trace::Record;

/// Bytes of IPv4 and UDP header after the identification.
const BYTES_AFTER_IP_ID: usize = 14 + 8;

/// The route from a host to an address.
struct Route {
    dst: IpAddr,
    target: Option<HostIndex>,
    link: Option<LinkId>,
}

impl World {
    /// Sends all packets of a batch that `nic` filled.
    pub(super) fn transmit(&mut self, nic: NicId, batch: &TxBatch) {
        let node = self.hosts[self.engines[nic.0].host.0].node;
        let config = self.engines[nic.0].nic.config();
        let (src, src_port) = (config.addr, config.udp_port);
        // Bursts to one host follow each other.
        let mut route = self.route(node, src);
        for burst in batch.bursts() {
            let key = FlowKey { src, dst: burst.dst, src_port, dst_port: burst.dst_port };
            if burst.dst != route.dst {
                route = self.route(node, burst.dst);
            }
            for (index, tx) in batch.packets(burst).iter().enumerate() {
                let ip_id = if burst.dst.is_ipv4() { index as u16 } else { 0 };
                let bytes = batch.bytes(tx);
                self.check_sent(nic, &key, ip_id, bytes);
                let mut packet = Packet::new(&key, self.fabric.packets.buffer());
                packet.tos = burst.tos;
                packet.ip_id = ip_id;
                packet.seal(bytes);
                // Nothing reads the copy soon, so its stores may complete late.
                packet.bytes.extend_from_slice(bytes);
                self.renumber(nic, &mut packet);
                self.launch(nic, &route, packet);
            }
        }
    }

    fn route(&self, node: NodeId, dst: IpAddr) -> Route {
        let network = &self.fabric.network;
        Route { dst, target: network.index_of(dst), link: network.next_hop(node, dst) }
    }

    /// Sends one packet.
    fn launch(&mut self, nic: NicId, route: &Route, packet: Packet) {
        if let Some(tap) = &mut self.tap {
            tap.hear(&packet);
        }
        self.fabric.stats.sent += 1;
        self.fabric.record(Record::Send, nic.0 as u64, packet.digest, || {
            format!("nic{} to {}: {}", nic.0, packet.dst, packet.describe())
        });
        self.put_on_link(route, packet);
    }

    fn put_on_link(&mut self, route: &Route, packet: Packet) {
        let id = self.fabric.packets.insert(packet);
        let peak = &mut self.fabric.stats.in_flight_peak;
        *peak = self.fabric.packets.len().max(*peak);
        self.fabric.packets.hop_mut(id).target = route.target;
        match route.link {
            Some(link) => self.fabric.send(link, id, 0),
            None => self.fabric.drop_unroutable(id),
        }
    }

    /// Puts a packet that no engine has sent on the link from a host to the packet's destination,
    /// whatever its source address.
    pub fn inject(&mut self, from: HostId, mut packet: Packet) {
        let route = self.route(self.hosts[from.0].node, packet.dst);
        let bytes = core::mem::take(&mut packet.bytes);
        packet.seal(&bytes);
        packet.bytes = bytes;
        self.fabric.stats.injected += 1;
        self.fabric.record(Record::Send, u64::MAX, packet.digest, || {
            format!(
                "host{} injects {} to {}: {}",
                from.0,
                packet.src,
                packet.dst,
                packet.describe()
            )
        });
        self.put_on_link(&route, packet);
    }

    /// Gives a packet the identification that a host with a counter would, and the matching ICRC.
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

    fn check_sent(&mut self, nic: NicId, key: &FlowKey, ip_id: u16, bytes: &[u8]) {
        let opcode = Opcode(bytes.first().copied().unwrap_or(0));
        match opcode.info().map(|info| info.kind) {
            Some(OpKind::ReadRequest) => self.fabric.stats.reads_sent += 1,
            Some(OpKind::CompareSwap | OpKind::FetchAdd) => self.fabric.stats.atomics_sent += 1,
            _ => {}
        }
        if let Err(what) = crate::check::wire::check_sent(key, ip_id, bytes) {
            let packet = Packet::new(key, bytes.to_vec()).describe();
            self.fabric.violate(format!("nic{} sent a bad packet: {what}: {packet}", nic.0));
        }
    }

    /// A packet reaches the end of a link. Returns the engine that handled it.
    pub(super) fn arrive(&mut self, link: LinkId, id: PacketId) -> Option<NicId> {
        let (node, ingress, is_switch) = self.fabric.network.arrival_of(link);
        if is_switch {
            self.fabric.enter_switch(node, ingress, id);
            return None;
        }
        let host = self.host_of_node.get(node.0 as usize).copied().flatten();
        match host {
            Some(host) if self.fabric.is_for(id, node) => self.reach_host(host, id),
            // Hosts do not forward.
            _ => {
                self.fabric.drop_unroutable(id);
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
                self.fabric.stats.ring_drops += 1;
                self.fabric.packets.discard(id);
            }
            return None;
        }
        let coalesce_ns = self.hosts[host.0].config.coalesce_ns;
        if coalesce_ns == 0 {
            return Some(self.receive(host, id));
        }
        if self.hosts[host.0].ring.is_empty() {
            let at = self.fabric.now.plus_nanos(coalesce_ns);
            self.fabric.queue.push(at, Event::Gather { host });
        }
        self.hosts[host.0].ring.push_back(id);
        None
    }

    /// Receives a packet for the engine that its destination QPN's prefix names. It is delivered
    /// together with those after it, as far as the host's port coalesces them.
    fn receive(&mut self, host: HostId, id: PacketId) -> NicId {
        let ttl = self.fabric.packets.hop(id).ttl;
        let mut packet = self.fabric.packets.take(id);
        let host = &mut self.hosts[host.0];
        let coalesces = host.config.coalesce_ns > 0;
        let ip_id = host.ip_id_of(&mut packet);
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
            ttl,
            ip_id,
        };
        self.fabric.stats.delivered += 1;
        let digest = packet.digest ^ u64::from(packet.tos);
        self.fabric.record(Record::Deliver, nic.0 as u64, digest, || {
            let mark = if meta.congestion_experienced() { " marked" } else { "" };
            format!("nic{} {ip_id:?}{mark}: {}", nic.0, packet.describe())
        });
        if coalesces {
            if self.gathered.takes(nic, &meta, &packet.bytes) {
                self.fabric.stats.coalesced += 1;
            } else {
                self.hand_over();
            }
            self.gathered.push(nic, meta, &packet.bytes);
        } else {
            self.touch(nic);
            let engine = &mut self.engines[nic.0].nic;
            engine.handle_frame(self.fabric.now, &meta, &packet.bytes);
        }
        self.fabric.packets.recycle(packet);
        nic
    }

    /// Delivers the gathered packets to their engine.
    fn hand_over(&mut self) {
        let Some(nic) = self.gathered.nic() else { return };
        self.touch(nic);
        self.gathered.hand_over(self.fabric.now, &mut self.engines[nic.0].nic);
    }

    /// A host handles nothing until `until`; what arrives meanwhile waits in its ring.
    pub fn pause(&mut self, host: HostId, until: Time) {
        let host_state = &mut self.hosts[host.0];
        if until <= host_state.paused_until.max(self.fabric.now) {
            return;
        }
        host_state.paused_until = until;
        self.fabric.stats.pauses += 1;
        self.fabric.queue.push(until, Event::Resume { host });
        self.fabric.record(Record::Pause, host.0 as u64, until.as_nanos(), || {
            format!("host{} until {until}", host.0)
        });
    }

    /// A pause ends: the ring is processed at once, as by a woken thread.
    pub(super) fn resume(&mut self, host: HostId) {
        if self.is_paused(host) {
            return;
        }
        self.fabric.record(Record::Resume, host.0 as u64, 0, || format!("host{}", host.0));
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
