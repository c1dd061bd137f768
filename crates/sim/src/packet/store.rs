//! All packets in flight.

use bowline_link::Damage;

use super::Packet;
use crate::net::{HostIndex, PortId};

/// An index into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketId(u32);

/// What the network reads on every hop, separate from the packet so that many fit into a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// The packet's destination, if it has been looked up.
    pub(crate) target: Option<HostIndex>,
    /// Bytes that the packet occupies on a link.
    pub(crate) wire_len: u32,
    /// The port by which it entered its current switch; none if it was made there.
    pub(crate) ingress: Option<PortId>,
    /// Hops left.
    pub(crate) ttl: u8,
    /// Its ends support ECN.
    pub(crate) is_ecn_capable: bool,
    /// A switch may have changed it.
    pub(crate) is_changed: bool,
}

impl Hop {
    fn of(packet: &Packet) -> Hop {
        Hop {
            target: None,
            wire_len: packet.wire_len(),
            ingress: None,
            ttl: packet.ttl,
            is_ecn_capable: packet.is_ecn_capable(),
            is_changed: false,
        }
    }
}

/// All packets in flight. Places and byte vectors are reused, so a warm store allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct PacketStore {
    hops: Vec<Hop>,
    packets: Vec<Option<Packet>>,
    free: Vec<PacketId>,
    spare: Vec<Vec<u8>>,
}

impl PacketStore {
    /// How many packets are in flight.
    pub(crate) fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    /// An empty byte vector, probably with capacity.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a packet.
    pub(crate) fn insert(&mut self, packet: Packet) -> PacketId {
        let hop = Hop::of(&packet);
        match self.free.pop() {
            Some(id) => {
                self.hops[id.0 as usize] = hop;
                self.packets[id.0 as usize] = Some(packet);
                id
            }
            None => {
                self.hops.push(hop);
                self.packets.push(Some(packet));
                PacketId((self.packets.len() - 1) as u32)
            }
        }
    }

    /// What the network knows about a packet.
    #[inline]
    pub(crate) fn hop(&self, id: PacketId) -> &Hop {
        &self.hops[id.0 as usize]
    }

    /// As [`hop`](PacketStore::hop), to change it.
    #[inline]
    pub(crate) fn hop_mut(&mut self, id: PacketId) -> &mut Hop {
        &mut self.hops[id.0 as usize]
    }

    /// A kept packet.
    ///
    /// # Panics
    /// If it was taken already: every packet is delivered or dropped once.
    #[inline]
    pub(crate) fn get(&self, id: PacketId) -> &Packet {
        self.packets[id.0 as usize].as_ref().expect("a packet is taken once")
    }

    /// As [`get`](PacketStore::get), to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        self.packets[id.0 as usize].as_mut().expect("a packet is taken once")
    }

    /// A packet for a switch to change.
    pub(crate) fn change(&mut self, id: PacketId) -> &mut Packet {
        let hop = self.hop_mut(id);
        hop.target = None;
        hop.is_changed = true;
        let ttl = hop.ttl;
        let packet = self.get_mut(id);
        packet.ttl = ttl;
        packet
    }

    /// Changes bytes of a packet on a link.
    pub(crate) fn corrupt(&mut self, id: PacketId, damage: Damage) {
        let packet = self.get_mut(id);
        damage.apply(&mut packet.bytes);
        packet.reseal();
        let wire_len = packet.wire_len();
        self.hop_mut(id).wire_len = wire_len;
    }

    /// Updates what the network knows about a packet after a switch has changed it.
    pub(crate) fn accept_changes(&mut self, id: PacketId) {
        let packet = self.get_mut(id);
        packet.reseal();
        let fresh = Hop::of(packet);
        let hop = self.hop_mut(id);
        *hop = Hop { ingress: hop.ingress, ..fresh };
    }

    /// Keeps a copy of a packet, bytes and all.
    pub(crate) fn duplicate(&mut self, id: PacketId) -> PacketId {
        let mut bytes = self.buffer();
        let original = self.get(id);
        bytes.extend_from_slice(&original.bytes);
        let packet = Packet { bytes, ..*original };
        let hop = *self.hop(id);
        let copy = self.insert(packet);
        *self.hop_mut(copy) = hop;
        copy
    }

    /// Takes a packet out.
    ///
    /// # Panics
    /// If it was taken already.
    pub(crate) fn take(&mut self, id: PacketId) -> Packet {
        let packet = self.packets[id.0 as usize].take().expect("a packet is taken once");
        self.free.push(id);
        packet
    }

    /// Returns a packet's memory to the store.
    pub(crate) fn recycle(&mut self, packet: Packet) {
        let mut bytes = packet.bytes;
        bytes.clear();
        self.spare.push(bytes);
    }

    /// Takes a packet out and drops it.
    pub(crate) fn discard(&mut self, id: PacketId) {
        let packet = self.take(id);
        self.recycle(packet);
    }
}
