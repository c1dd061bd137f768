//! Packets in transit on an emulated link.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use bowline_nic::Time;
use bowline_wire::FlowKey;

/// Most bytes held: some seconds of a fast link, whatever the profile's delay.
const MAX_BYTES: usize = 512 << 20;

/// A packet in transit.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) at: Time,
    pub(super) key: FlowKey,
    pub(super) tos: u8,
    /// The IPv4 identification that its ICRC was computed with.
    pub(super) summed_id: u16,
    /// BTH to ICRC.
    pub(super) frame: Vec<u8>,
}

impl Held {
    /// Flips a bit. A bit of the IP and UDP headers, which cannot be changed here, is mapped onto a
    /// bit of the packet.
    pub(super) fn flip_bit(&mut self, bit: usize) {
        let bit = bit % (self.frame.len() * 8).max(1);
        if let Some(byte) = self.frame.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// Packets ordered by arrival time; equal times in insertion order.
pub(super) struct HeldPackets {
    heap: BinaryHeap<Reverse<Entry>>,
    next_sequence: u64,
    bytes: usize,
    /// The latest arrival time so far.
    last_due: Time,
}

struct Entry {
    sequence: u64,
    held: Held,
}

impl HeldPackets {
    pub(super) fn new() -> HeldPackets {
        HeldPackets { heap: BinaryHeap::new(), next_sequence: 0, bytes: 0, last_due: Time::ZERO }
    }

    /// Takes a packet; `false` if too many are held already.
    pub(super) fn push(&mut self, held: Held) -> bool {
        if self.bytes + held.frame.len() > MAX_BYTES {
            return false;
        }
        self.bytes += held.frame.len();
        self.last_due = self.last_due.max(held.at);
        self.heap.push(Reverse(Entry { sequence: self.next_sequence, held }));
        self.next_sequence += 1;
        true
    }

    /// The arrival time of the first packet.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.held.at)
    }

    /// The arrival time of the last packet, if there is one.
    pub(super) fn last_due(&self) -> Time {
        self.last_due
    }

    /// The first packet, if it is due.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Held> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.bytes -= entry.held.frame.len();
        Some(entry.held)
    }
}

impl Entry {
    fn order(&self) -> (Time, u64) {
        (self.held.at, self.sequence)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.order().cmp(&other.order())
    }
}
