//! What an engine knows about one other rank.

use std::collections::VecDeque;

use bowline_nic::Time;

use super::OpId;
use super::express::Express;

/// A step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepOf {
    pub(super) op: OpId,
    pub(super) step: u32,
}

/// A message that a step waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) at: StepOf,
    /// The index of the term in the schedule.
    pub(super) term: u32,
    pub(super) len: usize,
}

/// What a work request in flight over RC carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// A message that no step waits for.
    Note,
    /// A step's message.
    Message(StepOf),
    /// A missing range of a message over XP.
    Repair {
        /// The message.
        number: u64,
        bytes: u32,
    },
}

/// A message in a slot that no step has taken yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) slot: u16,
    pub(super) tag: u16,
    pub(super) len: usize,
}

#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Messages to be sent to it, in order.
    pub(super) to_send: VecDeque<StepOf>,
    /// Work requests in flight to it over RC, oldest first, with the time of posting.
    pub(super) posted: VecDeque<(Posted, Time)>,
    /// Smoothed time until an ACK arrives; 0 while unknown.
    pub(super) rtt_ns: u64,
    /// Smoothed deviation from that time.
    pub(super) rtt_deviation_ns: u64,
    /// How often the oldest work request has been retransmitted, and when it was last checked.
    pub(super) probes: u32,
    pub(super) probed_at: Time,
    /// How often to repeat what is not acknowledged, and when next.
    pub(super) repeats_left: u8,
    pub(super) repeats_at: Option<Time>,
    /// Number of messages sent to it, and how many of them it has folded.
    pub(super) sent: u64,
    pub(super) folded_there: u64,

    /// How many of our multicast messages it has folded, if it is a rank.
    pub(super) casts_folded: u64,

    /// Steps that wait for its messages, in order.
    pub(super) expected: VecDeque<Expected>,
    /// Its messages that no step waits for yet. Either this or `expected` is empty.
    pub(super) arrived: VecDeque<Arrived>,
    /// Slots in use, oldest first, and whether each has been folded.
    pub(super) slots: VecDeque<bool>,
    /// Number of its messages that have been folded, without gaps.
    pub(super) folded: u64,
    /// The value of `folded` that was last reported to it.
    pub(super) told: u64,

    /// Messages over XP.
    pub(super) express: Express,

    /// Messages to it are copied when they are posted, however long they are.
    pub(super) is_copied_to: bool,
    /// Operations with bounds use no XP between it and this rank.
    pub(super) is_near: bool,
    /// It is queued to be checked for something to send.
    pub(super) is_queued: bool,
    /// It has announced that it leaves.
    pub(super) has_left: bool,
    /// Nothing can be sent to it any more.
    pub(super) is_broken: bool,
}

impl Peer {
    /// Whether something is due from it: a message, a credit, or the news that it has settled a
    /// message.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.expected.is_empty()
            || !self.to_send.is_empty()
            || self.express.inbox.expected().next().is_some()
            || self.express.outbox.is_waited_for()
    }

    /// Bytes of repairs in flight to it.
    pub(super) fn repair_bytes(&self) -> u64 {
        let bytes = |(posted, _): &(Posted, Time)| match posted {
            Posted::Repair { bytes, .. } => u64::from(*bytes),
            Posted::Note | Posted::Message(_) => 0,
        };
        self.posted.iter().map(bytes).sum()
    }

    /// The slot that its next message has written.
    pub(super) fn next_slot(&self, slots: u16) -> u16 {
        ((self.folded + self.slots.len() as u64) % u64::from(slots)) as u16
    }

    /// Frees a slot. Credits are granted in order, so a slot behind others waits for them.
    pub(super) fn free(&mut self, slot: u16, slots: u16) {
        let first = (self.folded % u64::from(slots)) as u16;
        let index = (slot + slots - first) % slots;
        if let Some(folded) = self.slots.get_mut(usize::from(index)) {
            *folded = true;
        }
        while self.slots.front() == Some(&true) {
            self.slots.pop_front();
            self.folded += 1;
        }
    }

    /// The number of its messages that have been folded, to be reported to it.
    pub(super) fn credit(&mut self) -> u16 {
        self.told = self.folded;
        self.folded as u16
    }

    /// Takes the count of messages that it says it has folded; `false` if the count is impossible.
    pub(super) fn take_credit(&mut self, count: u16) -> bool {
        let more = u64::from(count.wrapping_sub(self.folded_there as u16));
        if more > self.sent - self.folded_there {
            return false;
        }
        self.folded_there += more;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_given_in_order() {
        let mut peer = Peer { slots: VecDeque::from([false; 3]), ..Peer::default() };
        peer.free(1, 4);
        assert_eq!(peer.credit(), 0);
        assert_eq!(peer.next_slot(4), 3);
        peer.free(0, 4);
        assert_eq!((peer.credit(), peer.slots.len()), (2, 1));
        peer.slots.extend([false; 3]);
        assert_eq!(peer.next_slot(4), 2, "all four are in use");
        for slot in [2, 3, 0, 1] {
            peer.free(slot, 4);
        }
        assert_eq!(peer.credit(), 6);
    }

    #[test]
    fn a_credit_is_for_what_was_sent() {
        let mut peer = Peer { sent: 65_538, folded_there: 65_534, ..Peer::default() };
        assert!(!peer.take_credit(3), "one too many");
        assert!(peer.take_credit(0), "the count wraps");
        assert_eq!(peer.folded_there, 65_536);
        assert!(!peer.take_credit(u16::MAX), "backwards");
        assert!(peer.take_credit(2));
    }
}
