//! Frames on their way, and the store that keeps them.

use core::net::IpAddr;

use bowline_link::Damage;
use bowline_wire::PacketView;

use crate::hash::TraceHash;

/// A UDP datagram on its way: envelope and bytes.
#[derive(Clone, Debug)]
pub struct Packet {
    /// UDP payload: BTH to ICRC.
    pub bytes: Vec<u8>,
    /// Who sent it.
    pub src: IpAddr,
    /// Where it goes.
    pub dst: IpAddr,
    /// Sender's UDP port.
    pub src_port: u16,
    /// Receiver's UDP port.
    pub dst_port: u16,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// Hops left.
    pub ttl: u8,
    /// IPv4 identification.
    pub ip_id: u16,
    /// Hash of the bytes as they were sent, and of every change since.
    pub digest: u64,
}

/// Ethernet header, FCS, preamble and gap: what a datagram takes from a link besides IP and UDP.
const ETHERNET_OVERHEAD: usize = 14 + 4 + 20;
const IPV4_UDP: usize = 28;
const IPV6_UDP: usize = 48;

impl Packet {
    /// Bytes of link time that it takes.
    pub fn wire_len(&self) -> u32 {
        let headers = if self.dst.is_ipv4() { IPV4_UDP } else { IPV6_UDP };
        (self.bytes.len() + headers + ETHERNET_OVERHEAD) as u32
    }

    /// Computes `digest` from the bytes.
    pub fn seal(&mut self) {
        let mut hash = TraceHash::new(u64::from(self.ip_id));
        hash.bytes(&self.bytes);
        self.digest = hash.value();
    }

    /// Changes some bytes, which the digest tells even if they end up as they were.
    pub(crate) fn corrupt(&mut self, damage: Damage) {
        let before = self.digest;
        damage.apply(&mut self.bytes);
        self.seal();
        self.digest ^= before.rotate_left(1);
    }

    /// One line for people: what the packet says about itself.
    pub fn describe(&self) -> String {
        match PacketView::parse(&self.bytes) {
            Ok(view) => {
                let aeth = view.aeth().map_or(String::new(), |a| format!(" {a:?}"));
                let reth = view.reth().map_or(String::new(), |r| format!(" {r:?}"));
                format!(
                    "{} psn={} qpn={} len={}{}{aeth}{reth}",
                    view.opcode(),
                    view.psn(),
                    view.dest_qpn(),
                    view.payload().len(),
                    if view.ack_req() { " ackreq" } else { "" },
                )
            }
            Err(error) => format!("not a packet ({error}), {} bytes", self.bytes.len()),
        }
    }
}

/// A place in a [`PacketStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketId(u32);

/// All packets in flight. Slots and byte vectors are reused, so a warm store allocates nothing.
#[derive(Debug, Default)]
pub struct PacketStore {
    slots: Vec<Option<Packet>>,
    free: Vec<PacketId>,
    spare: Vec<Vec<u8>>,
}

impl PacketStore {
    /// How many packets are in flight.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty byte vector, probably with capacity.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a packet.
    pub fn insert(&mut self, packet: Packet) -> PacketId {
        match self.free.pop() {
            Some(id) => {
                self.slots[id.0 as usize] = Some(packet);
                id
            }
            None => {
                self.slots.push(Some(packet));
                PacketId((self.slots.len() - 1) as u32)
            }
        }
    }

    /// A kept packet.
    ///
    /// # Panics
    /// If it was taken already: every packet is delivered or dropped once.
    pub fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        self.slots[id.0 as usize].as_mut().expect("a packet is taken once")
    }

    /// Keeps a copy of a packet, bytes and all.
    pub fn duplicate(&mut self, id: PacketId) -> PacketId {
        let mut bytes = self.buffer();
        let original = self.slots[id.0 as usize].as_ref().expect("a packet is taken once");
        bytes.extend_from_slice(&original.bytes);
        let copy = Packet { bytes, ..*original };
        self.insert(copy)
    }

    /// Takes a packet out.
    ///
    /// # Panics
    /// If it was taken already.
    pub fn take(&mut self, id: PacketId) -> Packet {
        let packet = self.slots[id.0 as usize].take().expect("a packet is taken once");
        self.free.push(id);
        packet
    }

    /// Gives a packet's memory back.
    pub fn recycle(&mut self, packet: Packet) {
        let mut bytes = packet.bytes;
        bytes.clear();
        self.spare.push(bytes);
    }

    /// Takes a packet out and forgets it.
    pub fn discard(&mut self, id: PacketId) {
        let packet = self.take(id);
        self.recycle(packet);
    }
}
