//! The network: whatever was sent may arrive never, once or many times, now or much later.

use crate::scope::{EndId, Rail};

/// What an end says about itself when a connection moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) epoch: u8,
    pub(crate) rail: Rail,
    /// Two-sided messages received.
    pub(crate) received: u8,
    /// Where a new transport's PSNs start, seen from the receiver, who knows what it has seen.
    pub(crate) psn: u8,
}

/// Which packet of a request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Part {
    Only,
    First,
    Last,
    /// Stands in for a request that was carried out already.
    Empty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Packet {
    /// A packet of a request.
    Request {
        to: EndId,
        rail: Rail,
        psn: u8,
        number: u8,
        part: Part,
    },
    /// An acknowledgement, or the response that the request with this PSN wants.
    Ack {
        to: EndId,
        rail: Rail,
        psn: u8,
    },
    Move {
        to: EndId,
        at: Position,
    },
    Moved {
        to: EndId,
        at: Position,
    },
    /// "I have drained and want to go back: do likewise, and begin."
    Return {
        to: EndId,
        epoch: u8,
        attempt: u8,
    },
    /// "I could not drain; that attempt is over."
    Busy {
        to: EndId,
        epoch: u8,
        attempt: u8,
    },
}

impl Packet {
    /// The rail it is on; agents' datagrams take both.
    pub(crate) fn rail(&self) -> Option<Rail> {
        match *self {
            Packet::Request { rail, .. } | Packet::Ack { rail, .. } => Some(rail),
            _ => None,
        }
    }
}

/// All packets ever sent. A lost one is one that never arrives; a retransmission is the same
/// packet. That is the most that a network can do, and leaves the checker few states to tell apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Network {
    sorted: Vec<Packet>,
}

impl Network {
    pub(crate) fn send(&mut self, packet: Packet) {
        if let Err(place) = self.sorted.binary_search(&packet) {
            self.sorted.insert(place, packet);
        }
    }

    pub(crate) fn packets(&self) -> &[Packet] {
        &self.sorted
    }

    /// Takes what is in flight.
    pub(crate) fn drain(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.sorted)
    }
}
