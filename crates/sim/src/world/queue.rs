//! Events in the order of their time; events of the same time in the order they were asked for.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use bowline_nic::Time;

use super::host::{HostId, NicId};
use crate::net::NodeId;
use crate::packet::PacketId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventKind {
    Arrive { node: NodeId, packet: PacketId },
    Timeout { nic: NicId },
    Gather { host: HostId },
    Resume { host: HostId },
    Wake { token: u64 },
}

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Reverse<(Time, u64, EventKind)>>,
    sequence: u64,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: Time, kind: EventKind) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, kind)));
    }

    /// The next event, unless it is later than `deadline`.
    pub(super) fn pop_until(&mut self, deadline: Time) -> Option<(Time, EventKind)> {
        let Reverse((at, _, _)) = self.heap.peek()?;
        if *at > deadline {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, kind))| (at, kind))
    }
}
