//! XP in memory: packets are lost and reordered, and receives end when told to.

use std::collections::{BTreeMap, VecDeque};

use bowline_collective::Rank;
use bowline_collective::engine::Arrival;
use bowline_nic::Time;
use rand::RngExt;

use super::{EXPRESS_SLOTS, Shape, World};

/// Size of a packet in bytes.
pub(crate) const PACKET_BYTES: usize = 16;

/// Sender, receiver, and whether it is their connection for repairs.
type Pair = (Rank, Rank, bool);

/// A packet in flight.
struct Packet {
    pair: Pair,
    number: u64,
    /// Where the message goes: a slot, and an offset there.
    slot: u16,
    at: usize,
    imm: u32,
    len: usize,
    offset: usize,
    bytes: Vec<u8>,
}

/// A receive that has not ended.
struct Receive {
    slot: u16,
    ends_at: Time,
    /// What the headers of its packets say.
    said: Option<(u32, usize)>,
    /// Whether each packet has arrived, once the first has.
    arrived: Vec<bool>,
}

#[derive(Default)]
pub(super) struct Express {
    packets: Vec<Packet>,
    /// Number of messages sent.
    sent: BTreeMap<Pair, u64>,
    /// Senders that have not been told yet.
    leaving: VecDeque<Pair>,
    /// Receives by number, and how many were posted.
    receives: BTreeMap<Pair, (u64, BTreeMap<u64, Receive>)>,
}

impl Express {
    pub(super) fn new(shape: &Shape) -> Express {
        let mut express = Express::default();
        for from in 0..shape.ranks {
            for to in (0..shape.ranks).filter(|to| *to != from) {
                for slot in 0..2 * EXPRESS_SLOTS {
                    express.open((from, to, slot >= EXPRESS_SLOTS), shape.slots + slot);
                }
            }
        }
        express
    }

    pub(super) fn open(&mut self, pair: Pair, slot: u16) {
        let (posted, open) = self.receives.entry(pair).or_default();
        assert!(open.values().all(|receive| receive.slot != slot), "slot {slot} is in use");
        assert!(open.len() < EXPRESS_SLOTS.into());
        let receive = Receive { slot, ends_at: Time::NEVER, said: None, arrived: Vec::new() };
        open.insert(*posted, receive);
        *posted += 1;
    }

    pub(super) fn end(&mut self, pair: Pair, slot: u16, at: Time) {
        let (_, open) = self.receives.entry(pair).or_default();
        if let Some(receive) = open.values_mut().find(|receive| receive.slot == slot) {
            receive.ends_at = receive.ends_at.min(at);
        }
    }

    pub(super) fn next_end(&self) -> Time {
        let receives = self.receives.values().flat_map(|(_, open)| open.values());
        receives.map(|receive| receive.ends_at).min().unwrap_or(Time::NEVER)
    }

    /// Takes a receive whose end is due.
    fn pop_due(&mut self, now: Time) -> Option<(Pair, Receive)> {
        for (pair, (_, open)) in &mut self.receives {
            let due = open.iter().find(|(_, receive)| receive.ends_at <= now);
            if let Some(number) = due.map(|(number, _)| *number) {
                return open.remove(&number).map(|receive| (*pair, receive));
            }
        }
        None
    }
}

impl Receive {
    fn arrival(&self) -> Arrival {
        let Some((imm, len)) = self.said else { return Arrival::NOTHING };
        let mut missing: Vec<std::ops::Range<u32>> = Vec::new();
        for (k, _) in self.arrived.iter().enumerate().filter(|(_, arrived)| !**arrived) {
            let start = (k * PACKET_BYTES) as u32;
            let end = len.min((k + 1) * PACKET_BYTES) as u32;
            match missing.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => missing.push(start..end),
            }
        }
        Arrival { imm: Some(imm), len: Some(len as u32), missing }
    }
}

impl World {
    /// Puts the packets of a message in flight, unless it is cut short at once.
    pub(super) fn send_express(
        &mut self,
        pair: Pair,
        (slot, at): (u16, usize),
        imm: u32,
        bytes: &[u8],
        cut: bool,
    ) {
        assert!(!self.near.contains(&(pair.0, pair.1)), "they use no XP between them");
        let number = self.express.sent.entry(pair).or_default();
        let packet = |offset: usize, piece: &[u8]| Packet {
            pair,
            number: *number,
            slot,
            at,
            imm,
            len: bytes.len(),
            offset,
            bytes: piece.to_vec(),
        };
        let pieces = bytes.chunks(PACKET_BYTES).enumerate();
        let mut packets: Vec<_> =
            pieces.map(|(k, piece)| packet(k * PACKET_BYTES, piece)).collect();
        if bytes.is_empty() {
            packets.push(packet(0, &[]));
        }
        *number += 1;
        self.express.leaving.push_back(pair);
        let loss = self.loss;
        packets.retain(|_| !cut && self.rng.random::<f64>() >= loss);
        self.express.packets.extend(packets);
    }

    /// Delivers a packet, completes a send, or ends a receive. Returns whether there was anything
    /// to do.
    pub(super) fn deliver_express(&mut self) -> bool {
        if let Some((pair, receive)) = self.express.pop_due(self.now) {
            self.end_express(pair, &receive);
            return true;
        }
        if self.coin()
            && let Some((from, to, is_repair)) = self.express.leaving.pop_front()
        {
            let (now, node) = (self.now, &mut self.nodes[from as usize]);
            match (node.alive, is_repair) {
                (true, true) => node.engine.bulk_sent(now, to),
                (true, false) => node.engine.express_sent(now, to),
                (false, _) => {}
            }
            return true;
        }
        let count = self.express.packets.len();
        if count == 0 {
            return !self.express.leaving.is_empty();
        }
        let packet = self.express.packets.swap_remove(self.rng.random_range(0..count));
        self.place(&packet);
        true
    }

    fn place(&mut self, packet: &Packet) {
        let (from, to, is_repair) = packet.pair;
        let (_, open) = self.express.receives.entry(packet.pair).or_default();
        let Some(receive) = open.get_mut(&packet.number) else { return };
        assert!(is_repair || receive.slot == packet.slot, "both ends count alike");
        if receive.said.is_none() {
            receive.said = Some((packet.imm, packet.len));
            receive.arrived = vec![false; packet.len.div_ceil(PACKET_BYTES).max(1)];
        }
        receive.arrived[packet.offset / PACKET_BYTES] = true;
        let is_whole = receive.arrived.iter().all(|arrived| *arrived);
        let slot = &mut self.nodes[to as usize].rings[from as usize][usize::from(packet.slot)];
        let at = packet.at + packet.offset;
        slot[at..at + packet.bytes.len()].copy_from_slice(&packet.bytes);
        if is_whole && let Some(receive) = open.remove(&packet.number) {
            self.end_express(packet.pair, &receive);
        }
    }

    fn end_express(&mut self, (from, to, _): Pair, receive: &Receive) {
        let (now, node) = (self.now, &mut self.nodes[to as usize]);
        if node.alive {
            node.engine.express_ended(now, from, receive.slot, receive.arrival());
        }
    }
}
