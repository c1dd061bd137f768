//! Packets in flight, and the store that keeps them.

mod store;

use core::net::IpAddr;

use bowline_nic::ECN_MASK;
use bowline_wire::{FlowKey, ICRC_LEN, PacketView, icrc_of};

use crate::hash::TraceHash;
pub(crate) use store::{PacketId, PacketStore};

/// A UDP datagram in flight: envelope and bytes.
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
    /// TTL when it was sent, or last changed by a switch. The network counts hops separately.
    pub ttl: u8,
    /// IPv4 identification.
    pub ip_id: u16,
    /// Hash of what was sent, and of every change since.
    pub(crate) digest: u64,
}

/// TTL of a new packet: more than any topology here needs, so that only a loop exhausts it.
const INITIAL_TTL: u8 = 64;
/// Bytes at the start of a packet that its hash covers besides the ICRC: most headers.
const HASHED_BYTES: usize = 32;

/// Ethernet header, FCS, preamble and gap: a datagram's overhead on a link besides IP and UDP.
const ETHERNET_OVERHEAD: usize = 14 + 4 + 20;
const IPV4_UDP: usize = 28;
const IPV6_UDP: usize = 48;

impl Packet {
    /// A fresh packet, whose last bytes are its ICRC or will be once [`Packet::set_icrc`] is
    /// called.
    pub fn new(key: &FlowKey, bytes: Vec<u8>) -> Packet {
        Packet {
            bytes,
            src: key.src,
            dst: key.dst,
            src_port: key.src_port,
            dst_port: key.dst_port,
            tos: 0,
            ttl: INITIAL_TTL,
            ip_id: 0,
            digest: 0,
        }
    }

    /// Whether its ends support ECN.
    pub fn is_ecn_capable(&self) -> bool {
        self.tos & ECN_MASK != 0
    }

    /// The part of the envelope that the ICRC covers.
    pub fn flow_key(&self) -> FlowKey {
        FlowKey { src: self.src, dst: self.dst, src_port: self.src_port, dst_port: self.dst_port }
    }

    /// Overwrites the last bytes with the ICRC of the others, for switches that rewrite packets.
    pub fn set_icrc(&mut self) {
        let (key, ip_id) = (self.flow_key(), self.ip_id);
        if let Some((body, icrc)) = self.bytes.split_last_chunk_mut::<ICRC_LEN>() {
            *icrc = icrc_of(&key, ip_id, body).to_le_bytes();
        }
    }

    /// Strips the ICRC, if it is correct.
    pub(crate) fn unseal(&mut self) -> bool {
        let (key, ip_id) = (self.flow_key(), if self.dst.is_ipv4() { self.ip_id } else { 0 });
        let Some((body, icrc)) = self.bytes.split_last_chunk_mut::<ICRC_LEN>() else {
            return false;
        };
        let intact = icrc_of(&key, ip_id, body) == u32::from_le_bytes(*icrc);
        if intact {
            *icrc = [0; ICRC_LEN];
        }
        intact
    }

    /// Bytes that it occupies on a link.
    pub fn wire_len(&self) -> u32 {
        let headers = if self.dst.is_ipv4() { IPV4_UDP } else { IPV6_UDP };
        (self.bytes.len() + headers + ETHERNET_OVERHEAD) as u32
    }

    /// Computes `digest` of the bytes with which the packet leaves its engine. The ICRC, which is
    /// checked then, covers what is not hashed.
    pub(crate) fn seal(&mut self, bytes: &[u8]) {
        let mut hash = TraceHash::new(u64::from(self.ip_id));
        hash.bytes(&bytes[..bytes.len().min(HASHED_BYTES)]);
        let icrc = bytes.last_chunk::<ICRC_LEN>().copied().unwrap_or_default();
        hash.word(u64::from(u32::from_le_bytes(icrc)) << 32 | bytes.len() as u64);
        self.digest = hash.value();
    }

    /// Computes `digest` after a change; it differs even if the bytes end up unchanged.
    pub(crate) fn reseal(&mut self) {
        let mut hash = TraceHash::new(self.digest);
        hash.bytes(&self.bytes);
        self.digest = hash.value();
    }

    /// A human-readable line about the packet.
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

#[cfg(test)]
impl Packet {
    pub(crate) fn for_tests() -> Packet {
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        Packet::new(&FlowKey { src, dst, src_port: 4791, dst_port: 4791 }, vec![0x5a; 500])
    }
}
