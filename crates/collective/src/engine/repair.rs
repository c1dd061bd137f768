//! Outgoing messages over XP, and the retransmission of their missing ranges over RC.

use std::ops::Range;

use bowline_nic::Time;

use super::express::Repair;
use super::message::{self, Kind};
use super::peer::Posted;
use super::{Cause, Engine, EngineConfig, Failure, Post};
use crate::Rank;
use crate::schedule::{Action, Span};

/// Bytes of repairs in flight to a peer. RC sends all of them again when one packet is lost, at
/// once. More than a long link's queue holds would be lost again, and take messages over XP with
/// it. `send` and `recv` share the queue pair and are not limited.
const MAX_REPAIR_BYTES: u64 = 256 << 10;
/// Longer ranges are sent in pieces, so that the bound applies to them too.
const PIECE_BYTES: u32 = 32 << 10;

impl Engine {
    /// The oldest outstanding message to a peer over XP has been sent, or its deadline has passed.
    pub fn express_sent(&mut self, now: Time, to: Rank) {
        self.now = now;
        let peer = self.peer(to);
        peer.express.outbox.has_left();
        self.repeat_last(to);
        self.end_sends(to);
        self.look_at(to);
    }

    /// A peer is missing ranges of a message.
    pub fn nack(&mut self, now: Time, from: Rank, imm: u32, ranges: &[Range<u32>]) {
        self.now = now;
        if self.failure.is_some() {
            return;
        }
        let (is_bulk, number) = match message::decode(imm) {
            Some((Kind::Nack(_), number)) => (false, Some(number)),
            Some((Kind::Bulk(_), number)) => (true, Some(number)),
            _ => (false, None),
        };
        let outbox = &self.peer(from).express.outbox;
        let queued =
            number.and_then(|number| outbox.unsettled(number)).is_some_and(
                |number| match is_bulk {
                    true => self.queue_bulk(from, number, ranges),
                    false => self.queue_repairs(from, number, ranges),
                },
            );
        if !queued {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        self.look_at(from);
    }

    /// If a message with this immediate carries a bitmap of missing ranges: the slot that it is
    /// about.
    pub fn nack_slot(&self, imm: u32) -> Option<u16> {
        match message::decode(imm)? {
            (Kind::Nack(slot) | Kind::Bulk(slot), _) => Some(u16::from(slot)),
            _ => None,
        }
    }

    /// Whether a message with this immediate carries data of an operation.
    pub fn is_data(&self, imm: u32) -> bool {
        matches!(message::decode(imm), Some((Kind::Data(_), _)))
    }

    /// Whether a message with this immediate reports that the group has failed.
    pub fn is_abort(&self, imm: u32) -> bool {
        matches!(message::decode(imm), Some((Kind::Abort(_), _)))
    }

    /// Queues ranges for retransmission; `false` if the request is invalid.
    fn queue_repairs(&mut self, to: Rank, number: u64, ranges: &[Range<u32>]) -> bool {
        let Some(len) = self.sent_span(to, number).map(|span| span.len as u32) else {
            return false;
        };
        let clip = |range: &Range<u32>| range.start.min(len)..range.end.min(len);
        let ranges: Vec<_> = ranges.iter().map(clip).filter(|range| !range.is_empty()).collect();
        let outbox = &mut self.peer(to).express.outbox;
        let message = outbox.get(number).filter(|message| message.repairs == 0);
        let (Some(message), Some(last)) = (message, ranges.len().checked_sub(1)) else {
            return false;
        };
        message.repairs = ranges.len() as u32;
        let repair = |(i, range)| Repair { number, range, is_last: i == last };
        outbox.repairs.extend(ranges.into_iter().enumerate().map(repair));
        true
    }

    /// The memory of a message that was sent to a peer.
    pub(super) fn sent_span(&mut self, to: Rank, number: u64) -> Option<Span> {
        let at = self.peer(to).express.outbox.get(number)?.at?;
        match *self.op(at.op)?.schedule.action(at.step) {
            Action::Send { src, .. } => Some(src),
            Action::Fold { .. } | Action::Transform { .. } => None,
        }
    }

    /// The next control message to a peer.
    pub(super) fn next_control(&mut self, to: Rank) -> Option<Post> {
        let EngineConfig { slots, max_posted, bulk_bytes, .. } = self.config;
        let peer = self.peer(to);
        if peer.posted.len() >= max_posted || peer.has_left || peer.is_broken {
            return None;
        }
        let (inbox, outbox) = (&mut peer.express.inbox, &mut peer.express.outbox);
        let post = if let Some(number) = inbox.nacks.pop_front() {
            let slot = inbox.slot(number);
            let kind = if inbox.request(number, bulk_bytes) { Kind::Bulk } else { Kind::Nack };
            let imm = message::encode(kind(slot as u8), number as u16);
            Post::Nack { to, slot: slots + slot, imm }
        } else if outbox.is_untold() {
            Post::Note { to, imm: message::encode(Kind::Sent, outbox.tell()) }
        } else {
            let (kind, number) = outbox.reports.pop_front()?;
            Post::Note { to, imm: message::encode(kind, number) }
        };
        self.posted(to, Posted::Note);
        self.look_at(to);
        Some(post)
    }

    /// The next range that a peer is missing.
    pub(super) fn next_repair(&mut self, to: Rank) -> Option<Post> {
        let EngineConfig { slots, max_posted, .. } = self.config;
        let peer = self.peer(to);
        if peer.posted.len() >= max_posted || peer.has_left {
            return None;
        }
        let room = MAX_REPAIR_BYTES.saturating_sub(peer.repair_bytes());
        let repair = peer.express.outbox.next_repair(PIECE_BYTES, room)?;
        let Repair { number, range, is_last } = repair;
        let span = self.sent_span(to, number)?;
        let at = self.peer(to).express.outbox.get(number)?.at?;
        let op = self.op(at.op)?;
        let tag = op.tag;
        let slot = (number % u64::from(self.config.express_slots)) as u16;
        let src = Span { offset: span.offset + range.start as usize, len: range.len(), ..span };
        self.posted(to, Posted::Repair { number, bytes: range.len() as u32 });
        self.look_at(to);
        let imm = is_last.then(|| message::encode(Kind::Repair(slot as u8), tag));
        Some(Post::Repair { to, slot: slots + slot, offset: range.start, op: at.op, src, imm })
    }

    /// The next message to a peer over XP.
    pub(super) fn next_express(&mut self, to: Rank) -> Option<Post> {
        let EngineConfig { slots, express_slots, .. } = self.config;
        let at = *self.peer(to).express.outbox.to_send.front()?;
        let op = self.op(at.op)?;
        if op.waits[at.step as usize] > 0 {
            return None;
        }
        let Action::Send { src, .. } = *op.schedule.action(at.step) else { return None };
        let (tag, part) = (op.tag, op.schedule.part(at.step));
        let flight = flight(express_slots, op.schedule.sharers());
        let deadline = op.bound.as_ref().map_or(Time::NEVER, |bound| bound.deadline(part));
        let peer = self.peer(to);
        if peer.has_left {
            self.fail(Failure { rank: to, cause: Cause::Left });
            return None;
        }
        let outbox = &mut peer.express.outbox;
        if !outbox.has_room(express_slots, flight) {
            return None;
        }
        outbox.to_send.pop_front();
        let slot = slots + (outbox.sent() % u64::from(express_slots)) as u16;
        let wanted = outbox.post(at);
        self.look_at(to);
        let imm = u32::from(tag) << 16;
        let len = if wanted { src.len } else { 0 };
        if !wanted {
            // Send it without bytes, so that the messages behind it keep their numbers.
            self.complete(at);
        }
        Some(Post::Express { to, slot, op: at.op, src: Span { len, ..src }, imm, deadline })
    }

    /// A repair has arrived at the peer.
    pub(super) fn repair_sent(&mut self, to: Rank, number: u64) {
        if let Some(message) = self.peer(to).express.outbox.get(number) {
            message.repairs = message.repairs.saturating_sub(1);
        }
        self.end_sends(to);
    }

    /// A peer reports its progress.
    pub(super) fn take_progress(&mut self, from: Rank, counts: u16) {
        let slots = self.config.express_slots;
        if !self.peer(from).express.outbox.take_progress(counts, slots) {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        self.end_sends(from);
    }

    /// Completes the sends whose memory nothing reads any more.
    fn end_sends(&mut self, to: Rank) {
        while let Some(at) = self.peer(to).express.outbox.pop_over() {
            if let Some(at) = at {
                self.complete(at);
            }
        }
    }
}

/// How many messages may be in flight to a rank. If connections that share a path each used all of
/// their slots, they would overflow its queues together; so they share half of the slots. The other
/// half is for messages being repaired.
fn flight(slots: u16, sharers: u32) -> u16 {
    match sharers {
        0 | 1 => slots,
        _ => (u32::from(slots) / 2 / sharers).max(2) as u16,
    }
}
