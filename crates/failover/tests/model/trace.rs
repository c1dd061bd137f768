//! Prints the steps of a counterexample.

use std::fmt;

use crate::network::Packet;
use crate::scope::EndId;
use crate::world::Action;

fn name(id: EndId) -> char {
    ['A', 'B'][id]
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Transmit(id) => write!(f, "{} sends its next request", name(id)),
            Action::Deliver(packet) => write!(f, "{packet}"),
            Action::Suspect(id, rail) => {
                write!(f, "{} finds its home dead and goes to rail {rail}", name(id))
            }
            Action::Return(id) => write!(f, "{} wants to come back", name(id)),
            Action::Ask(id) => write!(f, "{} has drained, and asks to come back", name(id)),
            Action::Begin(id) => write!(f, "{} has drained, and comes back", name(id)),
            Action::Refuse(id) => write!(f, "{} cannot drain", name(id)),
            Action::GiveUp(id) => write!(f, "{} gives up", name(id)),
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Packet::Request { to, rail, psn, number, part } => {
                let to = name(to);
                write!(f, "{to} gets request {number} ({part:?}), PSN {psn}, on rail {rail}")
            }
            Packet::Ack { to, rail, psn } => {
                write!(f, "{} gets the answer to PSN {psn} on rail {rail}", name(to))
            }
            Packet::Move { to, at } => write!(f, "{} gets Move {at:?}", name(to)),
            Packet::Moved { to, at } => write!(f, "{} gets Moved {at:?}", name(to)),
            Packet::Return { to, epoch, attempt } => {
                write!(f, "{} gets Return({epoch}, {attempt})", name(to))
            }
            Packet::Busy { to, epoch, attempt } => {
                write!(f, "{} gets Busy({epoch}, {attempt})", name(to))
            }
        }
    }
}
