//! The network: anything that was sent may arrive never, once or many times, soon or much later.

use crate::scope::{EndId, Rail};

/// What an end reports about itself when a connection moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) epoch: u8,
    pub(crate) rail: Rail,
    /// Number of two-sided messages received.
    pub(crate) received: u8,
    /// The first PSN of a new transport. The receiver chooses it, because it knows which PSNs it
    /// has seen.
    pub(crate) psn: u8,
}

/// Which packet of a request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Part {
    Only,
    First,
    Last,
    /// Replaces a request that was already executed.
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
    /// An acknowledgement, or the response to the request with this PSN.
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
    /// "I have drained and want to return: drain too, and begin."
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
    /// The rail that it is on; agents' datagrams use both.
    pub(crate) fn rail(&self) -> Option<Rail> {
        match *self {
            Packet::Request { rail, .. } | Packet::Ack { rail, .. } => Some(rail),
            _ => None,
        }
    }
}

/// All packets ever sent. A lost packet is one that never arrives; a retransmission is the same
/// packet. This covers everything that a network can do, and leaves the checker few states to
/// distinguish.
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

    /// Takes everything in flight.
    pub(crate) fn drain(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.sorted)
    }
}
