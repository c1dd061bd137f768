//! The fast path for the many packets that resemble the one before: in order, in the middle of a
//! message.
//!
//! Apart from the sums they only change a count, so the rest of the decoder learns of them when it
//! next has other work.

use bowline_codes::Kernel;
use bowline_wire::{Opcode, PacketView, Position, Psn};

use super::Decoder;
use crate::symbol::BthSum;

/// Packets that may take the fast path: nothing is missing, and the block's units cover everything
/// before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alike {
    /// How many of them; 0 unless the last event was such a packet.
    left: u8,
    opcode: Opcode,
    lane: u8,
    lanes: u8,
    /// PSN of the next one.
    psn: Psn,
    /// Value of `left` when the decoder was last updated.
    whole: u8,
    kernel: Kernel,
}

impl Alike {
    pub(super) fn none() -> Alike {
        let (opcode, psn, kernel) = (Opcode(0), Psn::new(0), Kernel::best());
        Alike { left: 0, opcode, lane: 0, lanes: 0, psn, whole: 0, kernel }
    }
}

impl Decoder {
    /// Records a packet if it may go up on the fast path; if not, nothing has changed.
    #[inline]
    pub(crate) fn follow(&mut self, packet: &PacketView<'_>) -> bool {
        let alike = &mut self.alike;
        let bth = BthSum::of(packet.bth_view().as_bytes());
        if bth.opcode() != alike.opcode.0 || bth.psn() != alike.psn {
            return false;
        }
        if alike.left == 0 {
            return alike.whole > 0 && self.begin_alike(packet);
        }
        let payload = packet.payload();
        let Some(unit) = self.units.get_mut(usize::from(alike.lane)) else { return false };
        if !unit.is_alike(payload) {
            return false;
        }
        alike.left -= 1;
        alike.psn = alike.psn.next();
        if alike.lanes > 1 {
            alike.lane = if alike.lane + 1 == alike.lanes { 0 } else { alike.lane + 1 };
        }
        unit.add_alike(alike.kernel, bth, payload);
        true
    }

    /// The same for packets that differ only in their PSNs, which count up by one: `len` bytes
    /// each, BTH to ICRC, without extended headers and padding. Returns how many, from the first
    /// on.
    pub(crate) fn follow_run(&mut self, packets: &[u8], len: usize) -> usize {
        let mut rest = packets;
        while let Some(first) = rest.get(..len) {
            let alike = self.alike;
            let taken = if alike.left > 0 && alike.lanes == 1 {
                self.add_alike(rest, len)
            } else {
                PacketView::parse(first).map_or(0, |packet| usize::from(self.follow(&packet)))
            };
            if taken == 0 {
                break;
            }
            rest = &rest[taken * len..];
        }
        (packets.len() - rest.len()) / len.max(1)
    }

    /// Adds packets of a run to the only unit, at most to the end of the block.
    fn add_alike(&mut self, run: &[u8], len: usize) -> usize {
        let alike = &mut self.alike;
        let ([unit], Some(bth)) = (&mut self.units[..], run.first_chunk()) else { return 0 };
        let bth = BthSum::of(bth);
        let as_expected = bth.opcode() == alike.opcode.0 && bth.psn() == alike.psn;
        if !as_expected || unit.packet_len() != len {
            return 0;
        }
        let count = (run.len() / len).min(alike.left.into());
        alike.left -= count as u8;
        alike.psn = alike.psn.add(count as u32);
        unit.add_packets(bth, &run[..count * len], count);
        count
    }

    /// Begins a block with a packet that resembles those of the previous block, of which nothing is
    /// missing; `false`, and nothing has changed, if that is not enough.
    #[inline(never)]
    fn begin_alike(&mut self, packet: &PacketView<'_>) -> bool {
        let (Some(coding), [unit]) = (self.coding, &mut self.units[..]) else { return false };
        if coding.c() != 1 || !unit.is_alike(packet.payload()) {
            return false;
        }
        unit.clear();
        unit.add_packet(packet);
        self.catch_up();
        self.losses.expected = self.losses.expected.wrapping_add(1);
        self.begin(packet.psn(), false, coding);
        self.block.count = 1;
        self.next = Some(packet.psn().next());
        self.expect_alike(packet);
        true
    }

    /// After a packet in order: similar ones may take the fast path.
    pub(super) fn expect_alike(&mut self, packet: &PacketView<'_>) {
        let block = &self.block;
        let follow = packet.info().position == Position::Middle
            && block.open
            && block.exact
            && block.count >= block.c
            && !self.response
            && self.coding.is_some();
        if follow {
            let left = block.r.saturating_sub(block.count);
            self.alike = Alike {
                left,
                whole: left,
                opcode: packet.opcode(),
                lane: block.lane,
                lanes: block.c,
                psn: packet.psn().next(),
                ..self.alike
            };
        }
    }

    /// The next packet, and whether it belongs to the same block as the one before.
    pub(super) fn place(&self) -> (Option<Psn>, bool) {
        match self.alike.whole {
            0 => (self.next, self.block.open),
            _ => (Some(self.alike.psn), self.alike.left > 0),
        }
    }

    /// The decoder has other work: it is updated, and the fast path ends.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        let alike = &mut self.alike;
        let followed = alike.whole - alike.left;
        (alike.left, alike.whole) = (0, 0);
        if followed > 0 {
            let block = &mut self.block;
            block.count += followed;
            block.lane = alike.lane;
            block.open = block.count < block.r;
            self.next = Some(alike.psn);
            self.losses.expected = self.losses.expected.wrapping_add(followed.into());
        }
    }
}
