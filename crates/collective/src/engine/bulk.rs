//! Repair of messages that lack much: over an XP queue pair of their own.
//!
//! RC goes back to each packet that is lost, so on a long link that loses 1 % of packets it gets a
//! hundred packets through in a round trip. A host that stalls may miss thousands. One message over
//! XP repeats all of them; what it lacks in turn is requested again.

use std::ops::Range;

use bowline_nic::Time;

use super::message::{self, Kind};
use super::peer::Posted;
use super::receive::{Arrival, whole_elements};
use super::{Cause, Engine, Failure, Post};
use crate::Rank;
use crate::schedule::Span;

/// Offsets of repairs over XP are multiples of this, so that 16 bits hold them.
const OFFSET_UNIT: u32 = 256;

impl Engine {
    /// Queues the repair of a message over XP; `false` if the request is invalid.
    pub(super) fn queue_bulk(&mut self, to: Rank, number: u64, ranges: &[Range<u32>]) -> bool {
        let Some(len) = self.sent_span(to, number).map(|span| span.len as u32) else {
            return false;
        };
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return false };
        let range = first.start / OFFSET_UNIT * OFFSET_UNIT..last.end.min(len);
        let slots = self.config.express_slots;
        let outbox = &mut self.peer(to).express.outbox;
        // A peer requests nothing again before it has the note about the last repair.
        let has_room = outbox.bulk_sent.len() < usize::from(slots);
        match outbox.get(number).filter(|message| message.repairs == 0 && has_room) {
            Some(message) if !range.is_empty() => {
                message.repairs = 1;
                outbox.bulk.push_back((number, range));
                true
            }
            _ => false,
        }
    }

    /// The next repair over XP, or the note that one has been sent.
    pub(super) fn next_bulk(&mut self, to: Rank) -> Option<Post> {
        self.next_bulk_note(to).or_else(|| {
            let (number, range) = self.peer(to).express.outbox.bulk.pop_front()?;
            let span = self.sent_span(to, number)?;
            let at = self.peer(to).express.outbox.get(number)?.at?;
            let slot = self.express_slot(number);
            let src = Span { offset: span.offset + range.start as usize, len: range.len(), ..span };
            self.peer(to).express.outbox.bulk_posted.push_back(number);
            self.look_at(to);
            let (offset, units) = (range.start, (range.start / OFFSET_UNIT) as u16);
            let imm = message::encode(Kind::Repair(slot as u8), units);
            let slot = self.config.slots + slot;
            Some(Post::Bulk { to, slot, offset, op: at.op, src, imm })
        })
    }

    fn next_bulk_note(&mut self, to: Rank) -> Option<Post> {
        let max_posted = self.config.max_posted;
        let peer = self.peer(to);
        if peer.posted.len() >= max_posted || peer.has_left {
            return None;
        }
        let imm = peer.express.outbox.bulk_sent.pop_front()?;
        self.posted(to, Posted::Note);
        self.look_at(to);
        Some(Post::Note { to, imm })
    }

    /// The oldest outstanding repair to a peer over XP has been sent.
    pub fn bulk_sent(&mut self, now: Time, to: Rank) {
        self.now = now;
        let outbox = &mut self.peer(to).express.outbox;
        let Some(number) = outbox.bulk_posted.pop_front() else { return };
        let at = outbox.get(number).and_then(|message| message.at);
        // Otherwise the group has failed.
        if let Some(tag) = at.and_then(|at| self.op(at.op)).map(|op| op.tag) {
            let imm = message::encode(Kind::Repair(self.express_slot(number) as u8), tag);
            self.peer(to).express.outbox.bulk_sent.push_back(imm);
        }
        self.repair_sent(to, number);
        self.look_at(to);
    }

    fn express_slot(&self, number: u64) -> u16 {
        (number % u64::from(self.config.express_slots)) as u16
    }

    /// The receive of a repair over XP has ended.
    pub(super) fn bulk_ended(&mut self, from: Rank, slot: u16, arrival: &Arrival) {
        let inbox = &mut self.peer(from).express.inbox;
        let number = inbox.bulk.end(slot);
        let message = number.and_then(|number| inbox.get(number));
        let (Some(number), Some(message)) = (number, message) else {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        };
        message.awaits_bulk = false;
        let expected = message.expected;
        let len = expected.map_or(0, |expected| expected.len);
        let before = message.missing_bytes(len);
        if !message.take_bulk(arrival, message::decode(arrival.imm.unwrap_or(0))) {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        let repaired = before.saturating_sub(message.missing_bytes(len));
        // Before the note nobody knows whether more arrives, and which operation it is for.
        let is_over = !message.is_repairing || message.is_whole() && message.tag.is_some();
        let op = expected.filter(|_| !message.settled).map(|expected| expected.at.op);
        if let Some(bound) = op.and_then(|op| self.bound_mut(op)) {
            bound.report.repaired_bytes += repaired;
        }
        let first_slot = self.config.slots + self.config.express_slots;
        while let Some(slot) = self.peer(from).express.inbox.bulk.advance() {
            self.local.push_back(Post::Open { from, slot: first_slot + slot });
        }
        if is_over {
            self.judge(from, number);
        }
        self.advance(from);
    }

    /// The sender has sent the repair of a message over XP: what has not arrived is lost or late.
    pub(super) fn take_bulk_note(&mut self, from: Rank, number: u64, tag: u16) {
        let at = self.now.plus_nanos(self.config.reorder_ns);
        let first_slot = self.config.slots + self.config.express_slots;
        let inbox = &mut self.peer(from).express.inbox;
        let slot = inbox.bulk.slot_for(number);
        let Some(message) = inbox.get(number) else { return };
        message.is_repairing = false;
        message.tag = message.tag.or(Some(tag));
        if let Some(slot) = slot {
            self.local.push_back(Post::End { from, slot: first_slot + slot, at });
        } else {
            self.judge(from, number);
            self.advance(from);
        }
    }
}

impl super::express::Incoming {
    /// Takes what has arrived of a repair over XP; `false` if no sender sends that.
    fn take_bulk(&mut self, arrival: &Arrival, said: Option<(Kind, u16)>) -> bool {
        let Some(len) = arrival.len else { return true };
        let Some((Kind::Repair(_), units)) = said else { return false };
        let start = u32::from(units) * OFFSET_UNIT;
        let Some(end) = start.checked_add(len) else { return false };
        let shift = |hole: &Range<u32>| hole.start.min(len) + start..hole.end.min(len) + start;
        let absent: Vec<_> = whole_elements(&arrival.missing, len).iter().map(shift).collect();
        if self.is_unseen {
            (self.is_unseen, self.len, self.missing) = (false, Some(end), absent);
            return start == 0;
        }
        let outside = [0..start, end..u32::MAX];
        let absent = [&outside[..1], &absent, &outside[1..]].concat();
        self.missing = intersection(&self.missing, &absent);
        true
    }
}

/// What two lists of ranges, each in order, have in common.
fn intersection(these: &[Range<u32>], those: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut common = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(this), Some(that)) = (these.get(i), those.get(j)) {
        let both = this.start.max(that.start)..this.end.min(that.end);
        if !both.is_empty() {
            common.push(both);
        }
        if this.end <= that.end { i += 1 } else { j += 1 }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::super::express::Incoming;
    use super::*;

    #[test]
    fn what_a_repair_lacks_is_still_missing() {
        let missing = vec![8..16, 512..600, 900..1000, 5000..5008];
        let mut message = Incoming { ended: true, len: Some(8000), missing, ..Incoming::default() };
        let arrival = Arrival { imm: Some(0), len: Some(600), missing: vec![0..64, 400..480] };
        assert!(message.take_bulk(&arrival, Some((Kind::Repair(0), 2))));
        assert_eq!(message.missing, [8..16, 512..576, 912..992, 5000..5008]);
        let before = message.missing.clone();
        assert!(message.take_bulk(&Arrival::NOTHING, None));
        assert_eq!(message.missing, before, "all of it is lost");
        assert!(!message.take_bulk(&arrival, Some((Kind::Sent, 2))), "no repair");
        assert!(!message.take_bulk(&arrival, None));
    }

    #[test]
    fn a_repair_shows_how_long_an_unseen_message_is() {
        let unseen = || Incoming { ended: true, is_unseen: true, ..Incoming::default() };
        let arrival = Arrival { imm: Some(0), len: Some(600), missing: vec![0..64, 598..600] };
        let mut message = unseen();
        assert!(message.take_bulk(&arrival, Some((Kind::Repair(0), 0))));
        assert_eq!((message.len, message.is_unseen), (Some(600), false));
        assert_eq!(message.missing, [0..64, 592..600]);
        assert!(!unseen().take_bulk(&arrival, Some((Kind::Repair(0), 1))), "not all of it");
    }
}
