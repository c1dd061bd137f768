//! Messages to one rank over XP.

use std::collections::VecDeque;
use std::ops::Range;

use crate::engine::message::{Counts, Kind};
use crate::engine::peer::StepOf;

/// A posted message that the receiver has not settled, or whose memory is still read.
#[derive(Debug)]
pub(in crate::engine) struct Outgoing {
    /// Its step, unless the receiver gave the message up before it was sent.
    pub(in crate::engine) at: Option<StepOf>,
    /// XP still reads its memory.
    pub(in crate::engine) is_posted: bool,
    /// Number of ranges that are to be retransmitted or are in flight.
    pub(in crate::engine) repairs: u32,
}

/// A range that the receiver is missing.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Repair {
    pub(in crate::engine) number: u64,
    pub(in crate::engine) range: Range<u32>,
    /// It is the last range of its message.
    pub(in crate::engine) is_last: bool,
}

/// Messages to one rank, by number.
#[derive(Debug, Default)]
pub(in crate::engine) struct Outbox {
    /// Messages to be sent, in order.
    pub(in crate::engine) to_send: VecDeque<StepOf>,
    /// Number of the first message in `out`.
    first: u64,
    pub(in crate::engine) out: VecDeque<Outgoing>,
    /// Numbers of the messages that XP has not sent yet, in order.
    posted: VecDeque<u64>,
    /// The receiver's counts. It has settled all messages before `settled`, freed the slots of all
    /// before `free`, and for all before `ended` every packet has arrived or is lost.
    pub(in crate::engine) settled: u64,
    free: u64,
    ended: u64,
    /// How many messages the receiver knows to have been sent.
    told: u64,
    pub(in crate::engine) repairs: VecDeque<Repair>,
    /// Ranges to be retransmitted over XP, with their message; then the messages whose range is
    /// being sent; then the notes that it has been sent.
    pub(in crate::engine) bulk: VecDeque<(u64, Range<u32>)>,
    pub(in crate::engine) bulk_posted: VecDeque<u64>,
    pub(in crate::engine) bulk_sent: VecDeque<u32>,
    /// What is to be reported of operations that have ended.
    pub(in crate::engine) reports: VecDeque<(Kind, u16)>,
}

impl Outbox {
    /// The number of the next message.
    pub(in crate::engine) fn sent(&self) -> u64 {
        self.first + self.out.len() as u64
    }

    /// Whether the receiver, which has `slots`, has a free one, and fewer than `flight` messages
    /// are in flight.
    pub(in crate::engine) fn has_room(&self, slots: u16, flight: u16) -> bool {
        let sent = self.sent();
        sent < self.free + u64::from(slots) && sent < self.ended + u64::from(flight)
    }

    /// Adds a message. Returns whether the receiver still wants it.
    pub(in crate::engine) fn post(&mut self, at: StepOf) -> bool {
        let number = self.sent();
        let wanted = number >= self.settled;
        self.posted.push_back(number);
        self.out.push_back(Outgoing { at: wanted.then_some(at), is_posted: true, repairs: 0 });
        wanted
    }

    pub(in crate::engine) fn get(&mut self, number: u64) -> Option<&mut Outgoing> {
        let index = number.checked_sub(self.first)?;
        self.out.get_mut(index as usize)
    }

    /// XP has sent the oldest unsent message.
    pub(in crate::engine) fn has_left(&mut self) {
        if let Some(number) = self.posted.pop_front()
            && let Some(message) = self.get(number)
        {
            message.is_posted = false;
        }
    }

    /// The number with these low bits, if the receiver may still want that message.
    pub(in crate::engine) fn unsettled(&self, bits: u16) -> Option<u64> {
        let ahead = u64::from(bits.wrapping_sub(self.settled as u16));
        Some(self.settled + ahead).filter(|number| *number < self.sent())
    }

    /// Takes the next range to retransmit, or its first `piece` bytes, if it fits into `room`.
    pub(in crate::engine) fn next_repair(&mut self, piece: u32, room: u64) -> Option<Repair> {
        let next = self.repairs.front_mut()?;
        let len = (next.range.end - next.range.start).min(piece);
        if u64::from(len) > room {
            return None;
        }
        let middle = next.range.start + len;
        if middle == next.range.end {
            return self.repairs.pop_front();
        }
        let first = Repair { range: next.range.start..middle, is_last: false, ..*next };
        next.range.start = middle;
        if let Some(message) = self.get(first.number) {
            message.repairs += 1;
        }
        Some(first)
    }

    /// Takes the receiver's report of its progress; `false` if the report is impossible.
    pub(in crate::engine) fn take_progress(&mut self, counts: u16, slots: u16) -> bool {
        let Counts { free, settled, ended } = Counts::from_bits(counts, self.free);
        let end = free + u64::from(slots);
        if free > self.sent() || ended > end || settled < self.settled || ended < self.ended {
            return false;
        }
        (self.settled, self.free, self.ended) = (settled, free, ended);
        true
    }

    /// The step of the next message whose memory nothing reads any more.
    pub(in crate::engine) fn pop_over(&mut self) -> Option<Option<StepOf>> {
        let front = self.out.front()?;
        if self.first >= self.settled || front.is_posted || front.repairs > 0 {
            return None;
        }
        self.first += 1;
        self.out.pop_front().map(|message| message.at)
    }

    /// Whether to tell the receiver that everything that could be sent has been sent.
    pub(in crate::engine) fn is_untold(&self) -> bool {
        self.posted.is_empty() && self.sent() > self.told
    }

    /// How many messages have been sent, to be reported to the receiver.
    pub(in crate::engine) fn tell(&mut self) -> u16 {
        self.told = self.sent();
        self.told as u16
    }

    /// Whether the receiver still has messages to settle, now or later.
    pub(in crate::engine) fn is_waited_for(&self) -> bool {
        !self.to_send.is_empty() || self.sent() > self.settled
    }

    /// Whether XP has sent everything, and nothing more is to come.
    pub(in crate::engine) fn is_at_its_end(&self) -> bool {
        self.posted.is_empty() && self.to_send.is_empty()
    }

    /// Whether XP has sent everything.
    pub(in crate::engine) fn is_quiet(&self) -> bool {
        self.posted.is_empty() && self.bulk_posted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::OpId;

    fn step(step: u32) -> StepOf {
        StepOf { op: OpId(0), step }
    }

    fn counts(free: u64, settled: u64, ended: u64) -> u16 {
        Counts { free, settled, ended }.to_bits()
    }

    #[test]
    fn memory_is_read_until_it_is_settled_sent_and_repaired() {
        let mut outbox = Outbox::default();
        assert!(outbox.post(step(0)) && outbox.post(step(1)));
        assert!(!outbox.has_room(2, 2));
        assert!(outbox.take_progress(counts(0, 2, 2), 2));
        assert_eq!(outbox.pop_over(), None, "it is still being sent");
        outbox.has_left();
        outbox.get(0).unwrap().repairs = 1;
        assert_eq!(outbox.pop_over(), None, "a repair reads it");
        outbox.get(0).unwrap().repairs = 0;
        assert_eq!(outbox.pop_over(), Some(Some(step(0))));
        outbox.has_left();
        assert_eq!(outbox.pop_over(), Some(Some(step(1))));
        assert!(outbox.is_untold());
        assert_eq!((outbox.tell(), outbox.is_untold()), (2, false));
    }

    #[test]
    fn a_long_range_is_repaired_in_pieces() {
        let mut outbox = Outbox::default();
        assert!(outbox.post(step(0)));
        outbox.get(0).unwrap().repairs = 2;
        for (range, is_last) in [(8..108, false), (200..210, true)] {
            outbox.repairs.push_back(Repair { number: 0, range, is_last });
        }
        let mut next = |room| outbox.next_repair(64, room).map(|r| (r.range, r.is_last));
        assert_eq!(next(63), None, "no room for a piece");
        assert_eq!(next(64), Some((8..72, false)));
        assert_eq!(next(35), None, "no room for the rest");
        assert_eq!(next(36), Some((72..108, false)));
        assert_eq!(next(64), Some((200..210, true)));
        assert_eq!(next(64), None);
        assert_eq!(outbox.get(0).unwrap().repairs, 3, "memory is read until all have arrived");
    }

    #[test]
    fn what_the_receiver_gave_up_is_skipped_and_keeps_its_number() {
        let mut outbox = Outbox::default();
        assert!(outbox.take_progress(counts(0, 1, 1), 4));
        assert!(!outbox.post(step(0)), "nobody waits for it");
        assert!(outbox.post(step(1)));
        assert_eq!(
            (outbox.unsettled(0), outbox.unsettled(1), outbox.unsettled(2)),
            (None, Some(1), None)
        );
        for (free, settled, ended) in [(3, 3, 3), (1, 6, 6), (1, 2, 6), (0, 0, 1), (0, 0, 0)] {
            let told = counts(free, settled, ended);
            assert!(!outbox.take_progress(told, 4), "{free}, {settled}, {ended}");
        }
    }

    #[test]
    fn what_has_ended_is_not_in_flight_but_has_its_slot() {
        let mut outbox = Outbox::default();
        assert!(outbox.post(step(0)) && outbox.post(step(1)));
        assert!(outbox.has_room(4, 3) && !outbox.has_room(4, 2));
        // The first message has gaps.
        assert!(outbox.take_progress(counts(0, 0, 2), 4));
        assert!(outbox.has_room(4, 2));
        assert!(outbox.post(step(2)) && outbox.post(step(3)));
        assert!(!outbox.has_room(4, 9), "no slot is free");
        assert!(!outbox.take_progress(counts(0, 0, 1), 4), "it cannot be in flight again");
    }
}
