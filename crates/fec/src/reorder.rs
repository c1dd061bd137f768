//! Packets that arrived after a gap, held until it is filled or given up.

use std::collections::VecDeque;

use bowline_nic::Mtu;
use bowline_wire::{PacketView, Psn};

use crate::decode::REACH;
use crate::pool::{Buffer, Pool};

/// Packets that one stream may hold, acknowledgements included. A gap is given up before this many
/// follow it, so this only bounds forged ones: the pool belongs to all connections.
const MAX_HELD: usize = REACH as usize + 32;

/// Packets in order of their PSNs, in buffers from the shared pool.
#[derive(Debug, Default)]
pub(crate) struct Held {
    packets: VecDeque<HeldPacket>,
}

#[derive(Debug)]
pub(crate) struct HeldPacket {
    pub(crate) psn: Psn,
    /// An acknowledgement: several may share a PSN, and none fills a gap.
    pub(crate) is_ack: bool,
    pub(crate) bytes: Buffer,
    pub(crate) len: usize,
}

impl HeldPacket {
    /// The packet. It was valid when it was stored.
    pub(crate) fn view(&self) -> Option<PacketView<'_>> {
        PacketView::parse(self.bytes.get(..self.len)?).ok()
    }
}

impl Held {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether it is full.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.packets.len() >= MAX_HELD
    }

    /// Stores a copy of a packet; `false` if there is no space or the packet is too long for its
    /// MTU. A duplicate of a data packet is not stored.
    pub(crate) fn insert(
        &mut self,
        pool: &Pool,
        mtu: Mtu,
        packet: &PacketView<'_>,
        is_ack: bool,
    ) -> bool {
        let bytes = packet.as_bytes();
        let psn = packet.psn();
        if !is_ack && self.find(psn).is_some() {
            return true;
        }
        if self.is_full() {
            return false;
        }
        let Some(mut buffer) = pool.take(mtu) else { return false };
        let Some(room) = buffer.get_mut(..bytes.len()) else {
            pool.give(mtu, buffer);
            return false;
        };
        room.copy_from_slice(bytes);
        self.insert_buffer(HeldPacket { psn, is_ack, bytes: buffer, len: bytes.len() });
        true
    }

    pub(crate) fn insert_buffer(&mut self, packet: HeldPacket) {
        // Most come in order: search from the end.
        let behind = self.packets.iter().rposition(|p| !packet.psn.before(p.psn));
        self.packets.insert(behind.map_or(0, |at| at + 1), packet);
    }

    /// The data packet with this PSN.
    pub(crate) fn find(&self, psn: Psn) -> Option<&HeldPacket> {
        self.packets.iter().find(|p| p.psn == psn && !p.is_ack)
    }

    pub(crate) fn first(&self) -> Option<&HeldPacket> {
        self.packets.front()
    }

    pub(crate) fn last_psn(&self) -> Option<Psn> {
        self.packets.back().map(|p| p.psn)
    }

    /// Takes the packet with the lowest PSN out.
    pub(crate) fn pop(&mut self) -> Option<HeldPacket> {
        self.packets.pop_front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldPacket> {
        self.packets.iter()
    }

    pub(crate) fn clear(&mut self, pool: &Pool, mtu: Mtu) {
        for packet in self.packets.drain(..) {
            pool.give(mtu, packet.bytes);
        }
    }
}
