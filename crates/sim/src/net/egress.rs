//! A queue in front of a link whose packets can be paused, class by class.

use std::collections::VecDeque;

use bowline_nic::Time;

use super::network::PortId;
use crate::packet::PacketId;

/// Traffic classes: the three precedence bits of a packet's TOS or traffic class.
pub(super) const CLASSES: usize = 8;

/// The class of a packet.
pub(super) fn class_of(tos: u8) -> u8 {
    tos >> 5
}

/// A queue per class. Classes that are not paused take turns.
#[derive(Debug, Default)]
pub(super) struct Egress {
    queues: [VecDeque<Waiting>; CLASSES],
    bytes: u64,
    /// Classes that the far end has paused, as bits.
    paused: u8,
    /// The class that was served last.
    last: usize,
    /// When the queue will be served again; `None` if nothing can be sent.
    pub(super) departs_at: Option<Time>,
    drops: u64,
}

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// When it can leave at the earliest.
    pub(super) ready_at: Time,
    pub(super) packet: PacketId,
    pub(super) bytes: u32,
    pub(super) class: u8,
    /// The port charged for its buffer space, if its class is lossless there.
    pub(super) charged_to: Option<PortId>,
}

impl Egress {
    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn drops(&self) -> u64 {
        self.drops
    }

    pub(super) fn count_drop(&mut self) {
        self.drops += 1;
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.bytes += u64::from(waiting.bytes);
        self.queues[usize::from(waiting.class)].push_back(waiting);
    }

    pub(super) fn set_paused(&mut self, class: u8, is_on: bool) {
        let bit = 1 << class;
        self.paused = if is_on { self.paused | bit } else { self.paused & !bit };
    }

    /// When the next packet can leave at the earliest, as far as this queue is concerned.
    pub(super) fn ready_at(&self) -> Option<Time> {
        let open = (0..CLASSES).filter(|class| self.paused & (1 << class) == 0);
        open.filter_map(|class| self.queues[class].front()).map(|first| first.ready_at).min()
    }

    /// The packet to send now.
    pub(super) fn pop(&mut self, now: Time) -> Option<Waiting> {
        for turn in 1..=CLASSES {
            let class = (self.last + turn) % CLASSES;
            let is_ready = self.queues[class].front().is_some_and(|first| first.ready_at <= now);
            if is_ready && self.paused & (1 << class) == 0 {
                let first = self.queues[class].pop_front()?;
                self.last = class;
                self.bytes -= u64::from(first.bytes);
                return Some(first);
            }
        }
        None
    }
}
