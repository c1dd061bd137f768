//! Coding units: the XOR of a lane's packets, accumulated packet by packet.

use bowline_codes::{Kernel, xor_into};
use bowline_nic::{Mtu, Run, pad_of};
use bowline_wire::{Bth, ICRC_LEN, Opcode, PacketView, Psn, Qpn, REPAIR_EXT_LEN, RepairHeader};

use crate::pool::{Buffer, Pool};

/// The sum of the lane's packets so far: their extended headers, payloads, and the other fields
/// that differ from packet to packet.
///
/// Extended headers have a separate place before the payload. The application may change payload
/// while it is sent, and such changes must not reach the addresses and keys of a restored packet.
#[derive(Debug)]
pub(crate) struct Unit {
    bytes: Buffer,
    /// Payload bytes that count; what follows is left over.
    filled: usize,
    bths: BthSum,
    len: u16,
    has_ext: bool,
}

/// The XOR of BTHs, word by word. Only the opcode, the flags and the byte with the AckReq bit
/// matter; the rest of a packet's BTH is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BthSum {
    words: u64,
    last_word: u32,
}

impl BthSum {
    const ZERO: BthSum = BthSum { words: 0, last_word: 0 };

    /// The sum of one.
    #[inline]
    pub(crate) fn of(bth: &[u8; Bth::LEN]) -> BthSum {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bth;
        BthSum {
            words: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            last_word: u32::from_le_bytes(rest),
        }
    }

    #[inline]
    fn add(&mut self, other: BthSum) {
        self.words ^= other.words;
        self.last_word ^= other.last_word;
    }

    fn add_fields(&mut self, opcode: u8, flags: u8, ack: u8) {
        self.words ^= u64::from(opcode) | u64::from(flags) << 8;
        self.last_word ^= u32::from(ack);
    }

    /// The PSN of one.
    #[inline]
    pub(crate) fn psn(self) -> Psn {
        Psn::new(self.last_word.swap_bytes())
    }

    #[inline]
    pub(crate) fn opcode(self) -> u8 {
        self.words as u8
    }

    fn flags(self) -> u8 {
        (self.words >> 8) as u8
    }

    fn ack(self) -> u8 {
        self.last_word as u8
    }
}

impl Unit {
    pub(crate) fn take(pool: &Pool, mtu: Mtu) -> Option<Unit> {
        let bytes = pool.take(mtu)?;
        Some(Unit { bytes, filled: 0, bths: BthSum::ZERO, len: 0, has_ext: false })
    }

    pub(crate) fn give(self, pool: &Pool, mtu: Mtu) {
        pool.give(mtu, self.bytes);
    }

    /// Resets it to the empty sum.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
        self.bths = BthSum::ZERO;
        self.len = 0;
        self.has_ext = false;
    }

    /// Adds an outgoing packet.
    #[inline]
    pub(crate) fn add_outgoing(&mut self, header: &[u8], payload: &[u8]) {
        self.add_payload(payload);
        self.filled = self.filled.max(payload.len());
        self.add_header(header, payload.len());
    }

    /// Adds a received packet. Its payload fits the connection's MTU.
    #[inline]
    pub(crate) fn add_packet(&mut self, packet: &PacketView<'_>) {
        let payload = packet.payload();
        self.add_payload(payload);
        self.filled = self.filled.max(payload.len());
        let header = Bth::LEN + usize::from(packet.info().ext_len);
        self.add_header(&packet.as_bytes()[..header], payload.len());
    }

    /// Whether the payload is as long as the sum's.
    #[inline]
    pub(crate) fn is_alike(&self, payload: &[u8]) -> bool {
        payload.len() == self.filled
    }

    /// Length, BTH to ICRC, of a packet without extended headers and with as much payload as the
    /// sum.
    pub(crate) fn packet_len(&self) -> usize {
        packet_len(self.filled)
    }

    /// Adds a received packet without extended headers and with as much payload as the sum, which
    /// is what most packets are.
    #[inline]
    pub(crate) fn add_alike(&mut self, kernel: Kernel, bth: BthSum, payload: &[u8]) {
        self.bths.add(bth);
        self.len ^= payload.len() as u16;
        if let Some(sum) = self.bytes.get_mut(REPAIR_EXT_LEN..REPAIR_EXT_LEN + payload.len()) {
            kernel.xor_all_into(sum, [payload]);
        }
    }

    /// Adds packets of a run from `at` on, the first of which is a middle packet, if they follow
    /// each other from `psn` on and have as much payload as the sum: as many as there are, at most
    /// `most`. Returns how many.
    #[inline(never)]
    pub(crate) fn add_run(&mut self, run: &Run<'_>, at: usize, most: usize, psn: Psn) -> usize {
        let (count, bytes) = run.alike(at, most);
        let len = packet_len(self.filled);
        // A transport sends packets in order or restarts at an earlier one: if the first and the
        // last match, all do.
        let first = bytes.first_chunk().map(BthSum::of);
        let last = count.checked_sub(1).and_then(|n| bytes.get(n * len..)?.first_chunk());
        let (Some(first), Some(last)) = (first, last.map(BthSum::of)) else { return 0 };
        let fits = run.packets()[at].has_only_bth()
            && bytes.len() == count * len
            && first.psn() == psn
            && last.psn() == psn.add(count as u32 - 1);
        if !fits {
            return 0;
        }
        self.add_packets(first, bytes, count);
        count
    }

    /// Adds `count` packets that differ only in their PSNs, have no extended headers, and as much
    /// payload as the sum.
    #[inline]
    pub(crate) fn add_packets(&mut self, first: BthSum, packets: &[u8], count: usize) {
        self.xor_payloads(packets, count);
        if count % 2 == 1 {
            self.bths.add(first);
            self.len ^= self.filled as u16;
        }
    }

    /// Adds the payloads of `count` packets, each as long as the sum, several in one pass.
    #[inline(never)]
    fn xor_payloads(&mut self, mut packets: &[u8], mut count: usize) {
        let kernel = Kernel::best();
        let sum = &mut self.bytes[REPAIR_EXT_LEN..][..self.filled];
        while count >= 8 {
            kernel.xor_all_into(sum, payloads::<8>(packets, sum.len()));
            packets = &packets[8 * packet_len(sum.len())..];
            count -= 8;
        }
        match count {
            0 => {}
            1 => kernel.xor_all_into(sum, payloads::<1>(packets, sum.len())),
            2 => kernel.xor_all_into(sum, payloads::<2>(packets, sum.len())),
            3 => kernel.xor_all_into(sum, payloads::<3>(packets, sum.len())),
            4 => kernel.xor_all_into(sum, payloads::<4>(packets, sum.len())),
            5 => kernel.xor_all_into(sum, payloads::<5>(packets, sum.len())),
            6 => kernel.xor_all_into(sum, payloads::<6>(packets, sum.len())),
            _ => kernel.xor_all_into(sum, payloads::<7>(packets, sum.len())),
        }
    }

    /// Adds another unit.
    pub(crate) fn add_unit(&mut self, other: &Unit) {
        self.add_payload(other.payload());
        self.filled = self.filled.max(other.filled);
        self.bths.add(other.bths);
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
        self.add_payload(payload);
        self.filled = self.filled.max(payload.len());
        self.bths.add_fields(header.opcode, header.bth_flags, header.ack);
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
        header.opcode = self.bths.opcode();
        header.bth_flags = self.bths.flags();
        header.ack = self.bths.ack();
        header.len = self.len;
        header.has_ext = self.has_ext;
        let from = if self.has_ext { 0 } else { REPAIR_EXT_LEN };
        &self.bytes[from..REPAIR_EXT_LEN + self.filled]
    }

    /// If the sum is one packet: writes it to `out`, BTH to a place for the ICRC, and returns its
    /// length.
    pub(crate) fn write_packet(&self, dest_qpn: Qpn, psn: Psn, out: &mut [u8]) -> Option<usize> {
        let (opcode, flags, ack) = (self.bths.opcode(), self.bths.flags(), self.bths.ack());
        let info = Opcode(opcode).info()?;
        let (ext_len, len) = (usize::from(info.ext_len), usize::from(self.len));
        // No old bytes may remain where the packet has none.
        let ext =
            if self.has_ext { &self.bytes[..REPAIR_EXT_LEN] } else { &[0; REPAIR_EXT_LEN][..] };
        let payload = self.payload();
        if ext_len > REPAIR_EXT_LEN || len > payload.len() {
            return None;
        }
        let clean = ext[ext_len..].iter().chain(&payload[len..]).all(|byte| *byte == 0);
        let pad = pad_of(len);
        let flags_fit = flags & 0x3f == pad << 4 && ack & 0x7f == 0;
        if !clean || !flags_fit {
            return None;
        }
        let total = Bth::LEN + ext_len + len + usize::from(pad) + ICRC_LEN;
        let out = out.get_mut(..total)?;
        let (bth, rest) = out.split_first_chunk_mut()?;
        Bth::new(Opcode(opcode), dest_qpn, psn).emit(bth);
        bth[1] = flags;
        bth[8] = ack;
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

    /// Adds bytes to the payload. What is longer than the sum so far is copied.
    #[inline]
    fn add_payload(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[REPAIR_EXT_LEN..];
        let Some(room) = room.get_mut(..bytes.len()) else {
            debug_assert!(false, "callers check lengths");
            return;
        };
        let known = self.filled.min(bytes.len());
        xor_into(&mut room[..known], &bytes[..known]);
        if known < bytes.len() {
            room[known..].copy_from_slice(&bytes[known..]);
        }
    }

    #[inline]
    fn add_header(&mut self, header: &[u8], payload_len: usize) {
        if let Some((bth, ext)) = header.split_first_chunk::<{ Bth::LEN }>() {
            self.bths.add(BthSum::of(bth));
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

/// The length of a packet with this much payload, only a BTH and no padding.
#[inline]
fn packet_len(payload_len: usize) -> usize {
    Bth::LEN + payload_len + ICRC_LEN
}

/// The payloads of `N` such packets, one after the other.
#[inline]
fn payloads<const N: usize>(packets: &[u8], payload_len: usize) -> [&[u8]; N] {
    core::array::from_fn(|i| {
        let start = i * packet_len(payload_len) + Bth::LEN;
        &packets[start..start + payload_len]
    })
}
