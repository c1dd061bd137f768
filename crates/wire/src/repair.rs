//! LoWAR's headers: what follows the BTH of a packet with opcode 0x1F, and the greeting by which
//! two ends find each other before they send any such packet.
//!
//! The first byte after the BTH is the version and the type; the rest depends on the type. The PSN
//! of the BTH has no meaning: it is far behind the receiver's own, so that an implementation that
//! takes the packet for a response takes it for a stale one.

use crate::view::{be16, be24, be32, put, put_be24};
use crate::{Aeth, Bth, Opcode, PacketView, Psn, Qpn, Syndrome};

const VERSION: u8 = 1;
const TYPE_REPAIR: u8 = 1;
const TYPE_ANNOUNCE: u8 = 2;
const TYPE_REPORT: u8 = 3;

const FLAG_RESPONSE: u8 = 0x01;
const FLAG_FIRST: u8 = 0x02;
const FLAG_LAST: u8 = 0x04;
const FLAG_EXT: u8 = 0x08;
const FLAG_WANTS_REPORTS: u8 = 0x01;

/// How far behind the peer's own PSN the shim's packets are numbered: an eighth of the PSN space. A
/// connection that restarts at PSNs far ahead must not land here.
pub const STALE_BY: u32 = 1 << 21;

/// Bytes at the start of a repair's payload for extended headers, if any packet of its lane has
/// some: as many as the longest, that of an atomic.
pub const REPAIR_EXT_LEN: usize = 28;

/// A packet of the shim itself, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShimPacket<'a> {
    /// Repairs one packet of a lane of a block; the bytes are the XOR of the lane's packets.
    Repair(RepairHeader, &'a [u8]),
    /// The sender's capabilities and current code.
    Announce(AnnounceHeader),
    /// What arrived of the packets that this report's receiver has sent.
    Report(ReportHeader),
}

impl<'a> ShimPacket<'a> {
    /// Reads the bytes after the BTH of a packet with opcode 0x1F; `None` if they have another
    /// version, or are too short. The peer's numbers are not checked here.
    pub fn parse(bytes: &'a [u8]) -> Option<ShimPacket<'a>> {
        let first = *bytes.first()?;
        if first >> 4 != VERSION {
            return None;
        }
        match first & 0xf {
            TYPE_REPAIR => {
                let (header, rest) = bytes.split_first_chunk()?;
                Some(ShimPacket::Repair(RepairHeader::parse(header), rest))
            }
            TYPE_ANNOUNCE => {
                Some(ShimPacket::Announce(AnnounceHeader::parse(bytes.first_chunk()?)))
            }
            TYPE_REPORT => Some(ShimPacket::Report(ReportHeader::parse(bytes.first_chunk()?))),
            _ => None,
        }
    }
}

/// Header of a repair: its lane and block, and the XOR of those parts of the lane's packets that
/// are not in its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RepairHeader {
    /// The block consists of responses to the receiver's READs and atomics, not of requests.
    pub response: bool,
    /// Its first packet begins a message.
    pub has_first: bool,
    /// Its last packet ends a message.
    pub has_last: bool,
    /// The payload begins with [`REPAIR_EXT_LEN`] bytes for extended headers.
    pub has_ext: bool,
    /// Packets of a whole block.
    pub r: u8,
    /// Lanes of a block: the number of its repairs, unless it is shorter.
    pub c: u8,
    /// The lane's number: interleaving sequence number.
    pub isn: u8,
    /// PSN of the block's first packet.
    pub base: Psn,
    /// Packets of this block.
    pub count: u8,
    /// XOR of the opcodes.
    pub opcode: u8,
    /// XOR of the second bytes of the BTHs: solicited, migration state, pad, version.
    pub bth_flags: u8,
    /// XOR of the ninth bytes of the BTHs: acknowledge request.
    pub ack: u8,
    /// XOR of the payload lengths.
    pub len: u16,
    /// Payload length of the packet that ends the message, if one does.
    pub last_len: u16,
    /// Counts how often the sender went back: retransmitted packets may differ in flags.
    pub generation: u8,
}

impl RepairHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Reads a header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        RepairHeader {
            response: b[1] & FLAG_RESPONSE != 0,
            has_first: b[1] & FLAG_FIRST != 0,
            has_last: b[1] & FLAG_LAST != 0,
            has_ext: b[1] & FLAG_EXT != 0,
            r: b[2],
            c: b[3],
            isn: b[4],
            base: Psn::new(be24(b, 5)),
            count: b[8],
            opcode: b[9],
            bth_flags: b[10],
            ack: b[11],
            len: be16(b, 12),
            last_len: be16(b, 14),
            generation: b[16],
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = [0; Self::LEN];
        b[0] = VERSION << 4 | TYPE_REPAIR;
        b[1] = flag(FLAG_RESPONSE, self.response)
            | flag(FLAG_FIRST, self.has_first)
            | flag(FLAG_LAST, self.has_last)
            | flag(FLAG_EXT, self.has_ext);
        b[2] = self.r;
        b[3] = self.c;
        b[4] = self.isn;
        put_be24(b, 5, self.base.get());
        b[8] = self.count;
        b[9] = self.opcode;
        b[10] = self.bth_flags;
        b[11] = self.ack;
        put(b, 12, self.len.to_be_bytes());
        put(b, 14, self.last_len.to_be_bytes());
        b[16] = self.generation;
    }
}

/// An end's capabilities and current code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AnnounceHeader {
    /// It adapts its code to what the receiver reports.
    pub wants_reports: bool,
    /// Packets of the blocks that it will send from now on; 0 if it sends no repairs.
    pub r: u8,
    /// Their lanes.
    pub c: u8,
}

impl AnnounceHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads a header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        AnnounceHeader { wants_reports: b[1] & FLAG_WANTS_REPORTS != 0, r: b[2], c: b[3] }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; Self::LEN]) {
        let flags = flag(FLAG_WANTS_REPORTS, self.wants_reports);
        *b = [VERSION << 4 | TYPE_ANNOUNCE, flags, self.r, self.c];
    }
}

/// What arrived, counted since the connection began, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ReportHeader {
    /// Packets that were sent, as far as sequence numbers show.
    pub expected: u32,
    /// Packets among them that did not arrive.
    pub lost: u32,
    /// Runs of lost packets.
    pub bursts: u32,
    /// Lost packets that could not be repaired.
    pub unrepaired: u32,
    /// Longest run since the previous report.
    pub longest_burst: u16,
}

impl ReportHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Reads a header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        ReportHeader {
            longest_burst: be16(b, 2),
            expected: be32(b, 4),
            lost: be32(b, 8),
            bursts: be32(b, 12),
            unrepaired: be32(b, 16),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = [0; Self::LEN];
        b[0] = VERSION << 4 | TYPE_REPORT;
        put(b, 2, self.longest_burst.to_be_bytes());
        put(b, 4, self.expected.to_be_bytes());
        put(b, 8, self.lost.to_be_bytes());
        put(b, 12, self.bursts.to_be_bytes());
        put(b, 16, self.unrepaired.to_be_bytes());
    }
}

/// A greeting that can be sent to any peer: an acknowledgement of something long past, which every
/// conforming implementation ignores, with a mark in seven reserved bits.
///
/// Opcode 0x1F itself may only go to a peer that is known to accept it: see `docs/fec.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello;

impl Hello {
    /// The mark in the reserved bits beside the acknowledge request.
    const MARK: u8 = 0x5c;

    /// The BTH of a greeting to `dest_qpn`, whose own requests are at `peer_psn`.
    pub const fn bth(dest_qpn: Qpn, peer_psn: Psn) -> Bth {
        let mut bth = Bth::new(Opcode::RC_ACK, dest_qpn, stale_psn(peer_psn));
        bth.reserved7 = Self::MARK;
        bth
    }

    /// Its AETH. The sequence number of an ignored acknowledgement may have any value.
    pub const fn aeth() -> Aeth {
        Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: VERSION as u32 }
    }

    /// Whether a packet is a greeting.
    #[inline]
    pub fn is(packet: &PacketView<'_>) -> bool {
        packet.opcode() == Opcode::RC_ACK && packet.bth_view().reserved7() == Self::MARK
    }
}

/// A PSN that is long past for a peer whose own requests are at `peer_psn`.
pub const fn stale_psn(peer_psn: Psn) -> Psn {
    peer_psn.sub(STALE_BY)
}

const fn flag(bit: u8, on: bool) -> u8 {
    if on { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let repair = RepairHeader {
            response: true,
            has_first: false,
            has_last: true,
            has_ext: true,
            r: 64,
            c: 8,
            isn: 7,
            base: Psn::new(0xabcdef),
            count: 63,
            opcode: 0x0e,
            bth_flags: 0x30,
            ack: 0x80,
            len: 4096,
            last_len: 17,
            generation: 200,
        };
        let mut bytes = [0; RepairHeader::LEN];
        repair.emit(&mut bytes);
        assert_eq!(ShimPacket::parse(&bytes), Some(ShimPacket::Repair(repair, &[])));

        let announce = AnnounceHeader { wants_reports: true, r: 32, c: 1 };
        let mut bytes = [0; AnnounceHeader::LEN];
        announce.emit(&mut bytes);
        assert_eq!(ShimPacket::parse(&bytes), Some(ShimPacket::Announce(announce)));

        let report =
            ReportHeader { expected: 1 << 31, lost: 3, bursts: 2, unrepaired: 1, longest_burst: 2 };
        let mut bytes = [0; ReportHeader::LEN];
        report.emit(&mut bytes);
        assert_eq!(ShimPacket::parse(&bytes), Some(ShimPacket::Report(report)));
    }

    #[test]
    fn what_is_short_or_of_another_version_is_nothing() {
        assert_eq!(ShimPacket::parse(&[]), None);
        assert_eq!(ShimPacket::parse(&[0x11; 19]), None);
        assert_eq!(ShimPacket::parse(&[0x21; 40]), None);
        assert_eq!(ShimPacket::parse(&[0x1f; 40]), None);
    }
}
