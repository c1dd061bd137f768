//! Coding units: the XOR of a lane's packets, in the making.

use bowline_codes::xor_into;
use bowline_nic::{Mtu, OutPacket, pad_of};
use bowline_wire::{Bth, ICRC_LEN, Opcode, PacketView, Psn, Qpn, REPAIR_EXT_LEN, RepairHeader};

use crate::pool::{Buffer, Pool};

/// The lane's packets so far, summed up: their extended headers, payloads, and what else of them
/// differs from packet to packet.
///
/// Extended headers have a place of their own before the payload. The application may change payload
/// while it is sent, and what it changes must not reach the addresses and keys of a restored packet.
#[derive(Debug)]
pub(crate) struct Unit {
    bytes: Buffer,
    /// Payload bytes that count; what lies behind is left over.
    filled: usize,
    opcode: u8,
    bth_flags: u8,
    ack: u8,
    len: u16,
    has_ext: bool,
}

impl Unit {
    pub(crate) fn take(pool: &Pool, mtu: Mtu) -> Option<Unit> {
        let bytes = pool.take(mtu)?;
        Some(Unit { bytes, filled: 0, opcode: 0, bth_flags: 0, ack: 0, len: 0, has_ext: false })
    }

    pub(crate) fn give(self, pool: &Pool, mtu: Mtu) {
        pool.give(mtu, self.bytes);
    }

    /// Back to the sum of nothing.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
        (self.opcode, self.bth_flags, self.ack) = (0, 0, 0);
        self.len = 0;
        self.has_ext = false;
    }

    /// Adds a packet on its way out.
    #[inline]
    pub(crate) fn add_outgoing(&mut self, header: &[u8], packet: &OutPacket<'_>) {
        let mut at = 0;
        packet.for_each_piece(|bytes| {
            self.add_payload(at, bytes);
            at += bytes.len();
        });
        self.filled = self.filled.max(at);
        self.add_header(header, at);
    }

    /// Adds a packet that arrived. Its payload fits the connection's MTU.
    #[inline]
    pub(crate) fn add_packet(&mut self, packet: &PacketView<'_>) {
        let payload = packet.payload();
        self.add_payload(0, payload);
        self.filled = self.filled.max(payload.len());
        let header = Bth::LEN + usize::from(packet.info().ext_len);
        self.add_header(&packet.as_bytes()[..header], payload.len());
    }

    /// Adds a packet without extended headers and with as much payload as the sum has, which is what most
    /// packets are; `false`, and nothing is added, if it is not such a packet.
    #[inline]
    pub(crate) fn add_alike(&mut self, bth: &[u8; Bth::LEN], payload: &[u8]) -> bool {
        if payload.len() != self.filled {
            return false;
        }
        xor_into(&mut self.bytes[REPAIR_EXT_LEN..], payload);
        self.opcode ^= bth[0];
        self.bth_flags ^= bth[1];
        self.ack ^= bth[8];
        self.len ^= payload.len() as u16;
        true
    }

    /// Adds another unit.
    pub(crate) fn add_unit(&mut self, other: &Unit) {
        self.add_payload(0, other.payload());
        self.filled = self.filled.max(other.filled);
        self.opcode ^= other.opcode;
        self.bth_flags ^= other.bth_flags;
        self.ack ^= other.ack;
        self.len ^= other.len;
        if other.has_ext {
            self.add_ext(&other.bytes[..REPAIR_EXT_LEN]);
        }
    }

    /// Adds a repair packet; `false` if it is longer than any packet of the connection.
    pub(crate) fn add_repair(&mut self, header: &RepairHeader, body: &[u8]) -> bool {
        let (ext, payload) = if header.has_ext {
            match body.split_at_checked(REPAIR_EXT_LEN) {
                Some(parts) => parts,
                None => return false,
            }
        } else {
            (&[][..], body)
        };
        if payload.len() > self.capacity() {
            return false;
        }
        self.add_payload(0, payload);
        self.filled = self.filled.max(payload.len());
        self.opcode ^= header.opcode;
        self.bth_flags ^= header.bth_flags;
        self.ack ^= header.ack;
        self.len ^= header.len;
        if header.has_ext {
            self.add_ext(ext);
        }
        true
    }

    /// Payload bytes that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len() - REPAIR_EXT_LEN
    }

    /// Fills in what a repair's header takes from the unit; returns the repair's payload.
    pub(crate) fn repair(&self, header: &mut RepairHeader) -> &[u8] {
        header.opcode = self.opcode;
        header.bth_flags = self.bth_flags;
        header.ack = self.ack;
        header.len = self.len;
        header.has_ext = self.has_ext;
        let from = if self.has_ext { 0 } else { REPAIR_EXT_LEN };
        &self.bytes[from..REPAIR_EXT_LEN + self.filled]
    }

    /// If the sum is one packet: writes it to `out`, BTH to a place for the ICRC, and returns its length.
    pub(crate) fn write_packet(&self, dest_qpn: Qpn, psn: Psn, out: &mut [u8]) -> Option<usize> {
        let info = Opcode(self.opcode).info()?;
        let (ext_len, len) = (usize::from(info.ext_len), usize::from(self.len));
        // Nothing may be left where the packet has nothing.
        let ext =
            if self.has_ext { &self.bytes[..REPAIR_EXT_LEN] } else { &[0; REPAIR_EXT_LEN][..] };
        let payload = self.payload();
        if ext_len > REPAIR_EXT_LEN || len > payload.len() {
            return None;
        }
        let clean = ext[ext_len..].iter().chain(&payload[len..]).all(|byte| *byte == 0);
        let pad = pad_of(len);
        let flags_fit = self.bth_flags & 0x3f == pad << 4 && self.ack & 0x7f == 0;
        if !clean || !flags_fit {
            return None;
        }
        let total = Bth::LEN + ext_len + len + usize::from(pad) + ICRC_LEN;
        let out = out.get_mut(..total)?;
        let (bth, rest) = out.split_first_chunk_mut()?;
        Bth::new(Opcode(self.opcode), dest_qpn, psn).emit(bth);
        bth[1] = self.bth_flags;
        bth[8] = self.ack;
        let (to_ext, rest) = rest.split_at_mut_checked(ext_len)?;
        to_ext.copy_from_slice(&ext[..ext_len]);
        let (to_payload, rest) = rest.split_at_mut_checked(len)?;
        to_payload.copy_from_slice(&payload[..len]);
        rest.fill(0);
        Some(total)
    }

    #[inline]
    fn payload(&self) -> &[u8] {
        &self.bytes[REPAIR_EXT_LEN..REPAIR_EXT_LEN + self.filled]
    }

    /// Adds bytes at a place of the payload. What is longer than the sum so far is copied.
    #[inline]
    fn add_payload(&mut self, at: usize, bytes: &[u8]) {
        let room = &mut self.bytes[REPAIR_EXT_LEN..];
        let Some(room) = room.get_mut(at..at + bytes.len()) else {
            debug_assert!(false, "callers check lengths");
            return;
        };
        let known = self.filled.saturating_sub(at).min(bytes.len());
        xor_into(&mut room[..known], &bytes[..known]);
        if known < bytes.len() {
            room[known..].copy_from_slice(&bytes[known..]);
        }
    }

    #[inline]
    fn add_header(&mut self, header: &[u8], payload_len: usize) {
        if let Some((bth, ext)) = header.split_first_chunk::<{ Bth::LEN }>() {
            self.opcode ^= bth[0];
            self.bth_flags ^= bth[1];
            self.ack ^= bth[8];
            if !ext.is_empty() {
                self.add_ext(ext);
            }
        }
        self.len ^= payload_len as u16;
    }

    fn add_ext(&mut self, ext: &[u8]) {
        let place = &mut self.bytes[..REPAIR_EXT_LEN];
        if !core::mem::replace(&mut self.has_ext, true) {
            place.fill(0);
        }
        xor_into(place, ext);
    }
}
