//! Incoming messages over XP: when each is settled, and what is accepted as lost.

use std::ops::Range;
use std::sync::Arc;

use bowline_nic::Time;

use super::message;
use super::peer::Expected;
use super::{Cause, Engine, Failure, OpId, Post};
use crate::Rank;
use crate::schedule::Action;

/// What has arrived of a message over XP when its receive ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The immediate of its packets; `None` if none arrived.
    pub imm: Option<u32>,
    /// Its length; unknown if no packet arrived.
    pub len: Option<u32>,
    /// Missing ranges, in order. Empty if nothing arrived.
    pub missing: Vec<Range<u32>>,
}

impl Arrival {
    /// Nothing arrived.
    pub const NOTHING: Arrival = Arrival { imm: None, len: None, missing: Vec::new() };
}

/// Rounds ranges outwards to whole elements of any type. A peer may arrange its packets so that
/// they end in the middle of an element.
pub(super) fn whole_elements(ranges: &[Range<u32>], len: u32) -> Vec<Range<u32>> {
    const ELEMENT: u32 = 8;
    let mut rounded: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        let start = range.start / ELEMENT * ELEMENT;
        let end = range.end.div_ceil(ELEMENT).saturating_mul(ELEMENT).min(len);
        match rounded.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => rounded.push(start..end),
        }
    }
    rounded
}

impl Engine {
    /// The receive of a message over XP has ended: nothing more is written to its slot.
    pub fn express_ended(&mut self, now: Time, from: Rank, slot: u16, arrival: Arrival) {
        self.now = now;
        if self.failure.is_some() {
            return;
        }
        let first_slot = self.config.slots;
        if let Some(slot) = slot.checked_sub(first_slot + self.config.express_slots) {
            return self.bulk_ended(from, slot, &arrival);
        }
        let inbox = &mut self.peer(from).express.inbox;
        let number = slot.checked_sub(first_slot).and_then(|slot| inbox.number(slot));
        let Some(number) = number else { return };
        let Some(message) = inbox.get(number).filter(|message| !message.ended) else { return };
        message.ended = true;
        message.tag = arrival.imm.map(|imm| (imm >> 16) as u16);
        message.len = arrival.len;
        message.is_unseen = arrival.len.is_none();
        message.missing = whole_elements(&arrival.missing, arrival.len.unwrap_or(0));
        if arrival.len.is_some() {
            // Messages are sent in order, so whatever is missing from earlier ones is lost or late.
            inbox.reached = inbox.reached.max(number + 1);
            self.end_before(from, number);
        }
        self.judge(from, number);
        self.advance(from);
    }

    /// The sender reports how many messages it has sent.
    pub(super) fn take_sent(&mut self, from: Rank, count: u16) {
        let inbox = &mut self.peer(from).express.inbox;
        let sent = inbox.reached + u64::from(count.wrapping_sub(inbox.reached as u16));
        // The report may be older than a message that overtook it.
        let is_old = count.wrapping_sub(inbox.reached as u16) > u16::MAX / 2;
        if is_old {
            return;
        }
        if sent > inbox.end() {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        inbox.reached = sent;
        self.end_before(from, sent);
        self.advance(from);
    }

    /// The missing ranges of a slot have arrived.
    pub(super) fn take_repair(&mut self, from: Rank, slot: u8, tag: u16) {
        let inbox = &mut self.peer(from).express.inbox;
        let number = inbox.number(slot.into());
        let message = number.and_then(|number| inbox.get(number));
        let (Some(number), Some(message)) = (number, message.filter(|m| m.is_repairing)) else {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        };
        if message.is_bulk {
            return self.take_bulk_note(from, number, tag);
        }
        let repaired: u64 = match message.expected {
            Some(expected) => message.missing_bytes(expected.len),
            None => message.missing.iter().map(|hole| u64::from(hole.end - hole.start)).sum(),
        };
        message.is_repairing = false;
        message.is_unseen = false;
        message.missing.clear();
        message.tag = message.tag.or(Some(tag));
        let (settled, op) = (message.settled, message.expected.map(|expected| expected.at.op));
        if let Some(bound) = op.filter(|_| !settled).and_then(|op| self.bound_mut(op)) {
            bound.report.repaired_bytes += repaired;
        }
        self.judge(from, number);
        self.advance(from);
    }

    /// Ends the receives of messages before this one, after a grace period for reordered packets.
    fn end_before(&mut self, from: Rank, number: u64) {
        let at = self.now.plus_nanos(self.config.reorder_ns);
        let first_slot = self.config.slots;
        let inbox = &mut self.peer(from).express.inbox;
        let mut ends = Vec::new();
        for earlier in inbox.first..number {
            let slot = first_slot + inbox.slot(earlier);
            if let Some(message) = inbox.get(earlier)
                && !message.ended
                && !message.is_ending
            {
                message.is_ending = true;
                ends.push(Post::End { from, slot, at });
            }
        }
        self.local.extend(ends);
    }

    /// A step of an operation with bounds waits for the next message from a peer.
    pub(super) fn expect_express(&mut self, from: Rank, expected: Expected) {
        self.peer(from).express.inbox.waiting.push_back(Some(expected));
        self.advance(from);
    }

    /// Frees slots, and assigns messages to the steps that wait for them.
    pub(super) fn advance(&mut self, from: Rank) {
        let first_slot = self.config.slots;
        loop {
            if self.failure.is_some() {
                return;
            }
            let inbox = &mut self.peer(from).express.inbox;
            if let Some(freed) = inbox.advance() {
                let slot = first_slot + inbox.slot(freed);
                self.local.push_back(Post::Open { from, slot });
            } else if let Some((number, expected)) = inbox.assign() {
                match expected {
                    Some(expected) => self.take_message(from, number, expected),
                    None => self.skip(from, number),
                }
            } else {
                break;
            }
        }
        if self.peer(from).express.inbox.is_untold() {
            self.owed.push_back(from);
        }
    }

    /// Skips a message that nothing waits for any more.
    fn skip(&mut self, from: Rank, number: u64) {
        let (at, first_slot) = (self.now, self.config.slots);
        let inbox = &mut self.peer(from).express.inbox;
        let slot = first_slot + inbox.slot(number);
        if let Some(message) = inbox.get(number) {
            message.folded = true;
            if !message.ended {
                self.local.push_back(Post::End { from, slot, at });
            }
        }
        self.peer(from).express.inbox.settle(number);
    }

    /// A message in the ring has been assigned to its step.
    fn take_message(&mut self, from: Rank, number: u64, expected: Expected) {
        let peer = self.peer(from);
        let has_left = peer.has_left;
        let Some(message) = peer.express.inbox.get(number) else { return };
        if message.settled {
            return self.hand_over(from, number);
        }
        if has_left {
            return self.fail(Failure { rank: from, cause: Cause::Left });
        }
        if self.is_late(expected) {
            self.stop_waiting(expected.at.op);
        }
    }

    /// Decides about a message whose receive has ended: either it is settled, or the missing ranges
    /// are requested.
    pub(super) fn judge(&mut self, from: Rank, number: u64) {
        let Some(message) = self.peer(from).express.inbox.get(number) else { return };
        if !message.ended || message.settled {
            return;
        }
        let reserved = std::mem::take(&mut message.reserved);
        let (is_whole, expected) = (message.is_whole(), message.expected);
        if let Some(bound) = expected.and_then(|expected| self.bound_mut(expected.at.op)) {
            bound.unreserve(reserved);
        }
        if is_whole {
            self.peer(from).express.inbox.settle(number);
            if expected.is_some() {
                self.hand_over(from, number);
            }
        } else if !expected.is_some_and(|expected| self.accept(from, number, expected)) {
            let peer = self.peer(from);
            if let Some(message) = peer.express.inbox.get(number)
                && !message.is_repairing
            {
                message.is_repairing = true;
                peer.express.inbox.nacks.push_back(number);
                self.look_at(from);
            }
        }
        if let Some(expected) = expected.filter(|_| reserved > 0) {
            // Less was lost than was reserved, so further losses may be affordable.
            self.stop_waiting(expected.at.op);
        }
    }

    /// Whether the operation has stopped waiting for a message.
    fn is_late(&self, expected: Expected) -> bool {
        let Some(op) = self.op(expected.at.op) else { return false };
        let part = op.schedule.part(expected.at.step);
        op.bound.as_ref().is_some_and(|bound| bound.deadline(part) <= self.now)
    }

    /// Accepts the missing ranges of a message as lost, if it is late and the bounds allow it.
    /// Returns whether it did.
    fn accept(&mut self, from: Rank, number: u64, expected: Expected) -> bool {
        let is_late = self.is_late(expected);
        let Some(message) = self.peer(from).express.inbox.get(number) else { return false };
        let (bytes, holes) = (message.missing_bytes(expected.len), message.holes(expected.len));
        if !is_late || !self.bound_mut(expected.at.op).is_some_and(|bound| bound.can_lose(bytes)) {
            return false;
        }
        self.lose(from, expected, holes);
        self.peer(from).express.inbox.settle(number);
        self.owed.push_back(from);
        self.hand_over(from, number);
        true
    }

    /// Records the missing ranges of a message.
    fn lose(&mut self, from: Rank, expected: Expected, holes: Vec<Range<u32>>) {
        let Some(op) = self.op_mut(expected.at.op) else { return };
        let Action::Fold { dst, .. } = *op.schedule.action(expected.at.step) else { return };
        if let Some(bound) = &mut op.bound {
            bound.lose(op.schedule.contributors(&from), dst, expected.term, holes);
        }
    }

    /// Passes a settled message to its step.
    fn hand_over(&mut self, from: Rank, number: u64) {
        let first_slot = self.config.slots;
        let inbox = &mut self.peer(from).express.inbox;
        let slot = first_slot + inbox.slot(number);
        let Some(message) = inbox.get(number) else { return };
        let (tag, len) = (message.tag, message.len);
        let Some(expected) = message.expected else { return };
        let Some(op) = self.op_mut(expected.at.op) else { return };
        let differs = tag.is_some_and(|tag| tag != op.tag)
            || len.is_some_and(|len| len as usize != expected.len);
        if differs {
            return self.fail(Failure { rank: from, cause: Cause::Mismatch });
        }
        op.slots[expected.term as usize] = slot;
        let schedule = Arc::clone(&op.schedule);
        self.release(expected.at, &schedule);
    }

    /// Deadlines of an operation have passed: accepts missing ranges as far as the bounds allow,
    /// smallest losses first.
    pub(super) fn stop_waiting(&mut self, id: OpId) {
        let mut ended = Vec::new();
        let mut open = Vec::new();
        let mut behind = Vec::new();
        for rank in self.others() {
            let Some(peer) = self.peers[rank as usize].as_ref() else { continue };
            let inbox = &peer.express.inbox;
            for (number, message) in (inbox.first..).zip(&inbox.ring) {
                let Some(expected) = message.expected.filter(|e| e.at.op == id) else { continue };
                if message.settled || !self.is_late(expected) {
                    continue;
                }
                if message.ended {
                    ended.push((message.missing_bytes(expected.len), rank, number, expected));
                } else if message.reserved == 0 {
                    open.push((expected.len as u64, rank, number, expected));
                }
            }
            for (index, expected) in inbox.waiting.iter().enumerate() {
                let Some(expected) = expected.filter(|e| e.at.op == id) else { continue };
                if self.is_late(expected) {
                    behind.push((expected.len as u64, rank, index, expected));
                }
            }
        }
        ended.sort_by_key(|(bytes, ..)| *bytes);
        for (_, rank, number, expected) in ended {
            self.accept(rank, number, expected);
        }
        for (bytes, rank, number, _) in open {
            self.give_up_on(id, rank, number, bytes);
        }
        for (bytes, rank, index, expected) in behind {
            if self.bound_mut(id).is_some_and(|bound| bound.can_lose(bytes)) {
                let whole = 0..bytes as u32;
                self.lose(rank, expected, vec![whole]);
                self.peer(rank).express.inbox.waiting[index] = None;
                let Some(op) = self.op_mut(id) else { return };
                op.slots[expected.term as usize] = super::NO_SLOT;
                let schedule = Arc::clone(&op.schedule);
                self.release(expected.at, &schedule);
            }
        }
    }

    /// Ends the receive of a message now, if losing all of it is affordable. Otherwise the receive
    /// ends when the sender has sent the message, and the message can then be repaired.
    fn give_up_on(&mut self, id: OpId, from: Rank, number: u64, bytes: u64) {
        let (at, first_slot) = (self.now, self.config.slots);
        let Some(bound) = self.bound_mut(id).filter(|bound| bound.can_lose(bytes)) else { return };
        bound.reserve(bytes);
        let inbox = &mut self.peer(from).express.inbox;
        let slot = first_slot + inbox.slot(number);
        if let Some(message) = inbox.get(number) {
            message.reserved = bytes;
            message.is_ending = true;
            self.local.push_back(Post::End { from, slot, at });
        }
    }

    /// A fold has read the slot of a message over XP.
    pub(super) fn free_express(&mut self, from: Rank, slot: u16) {
        let Some(slot) = slot.checked_sub(self.config.slots) else { return };
        let inbox = &mut self.peer(from).express.inbox;
        if let Some(message) = inbox.number(slot).and_then(|number| inbox.get(number)) {
            message.folded = true;
        }
        self.advance(from);
    }

    /// What to request again of the message in a slot: ranges, or everything.
    ///
    /// # Panics
    /// If [`poll_post`](Engine::poll_post) has not just asked for this request.
    pub fn missing(&self, from: Rank, slot: u16) -> Option<&[Range<u32>]> {
        let peer = self.peers[from as usize].as_ref().expect("a request is of a peer's message");
        let inbox = &peer.express.inbox;
        let number = slot.checked_sub(self.config.slots).and_then(|slot| inbox.number(slot));
        let index = number.expect("the slot is one of XP") - inbox.first;
        let message = &inbox.ring[index as usize];
        (!message.is_unseen).then_some(&message.missing)
    }

    /// The control message that reports progress with a peer's messages.
    pub(super) fn progress_note(&mut self, to: Rank) -> (Rank, message::Kind, u16) {
        let counts = self.peer(to).express.inbox.tell();
        (to, message::Kind::Progress, counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_whole_elements() {
        assert_eq!(whole_elements(&[0..8, 16..24], 40), [0..8, 16..24]);
        assert_eq!(whole_elements(&[4..8, 12..20, 36..38], 39), [0..24, 32..39]);
        let (most, all) = (1..u32::MAX, 0..u32::MAX);
        assert_eq!(whole_elements(&[most], u32::MAX), [all]);
        assert_eq!(whole_elements(&[], 7), []);
    }
}
