//! Messages from one rank over XP.

use std::collections::VecDeque;
use std::ops::Range;

use super::Bulk;
use crate::engine::message::Counts;
use crate::engine::peer::Expected;

/// A repair over XP sends everything between the first and the last missing byte. At least one byte
/// of this many must be missing.
const MAX_BULK_RATIO: u64 = 4;
/// How often a message is repaired over XP. After that RC has to do, which works however much XP
/// loses.
const MAX_BULK_TRIES: u8 = 2;

/// A message over XP, from the posting of its receive until its slot is free.
#[derive(Debug, Default)]
pub(in crate::engine) struct Incoming {
    /// Its receive has ended: XP writes nothing more.
    pub(in crate::engine) ended: bool,
    /// Its receive has been told to end.
    pub(in crate::engine) is_ending: bool,
    /// The contents of its packet headers, if any packet arrived.
    pub(in crate::engine) tag: Option<u16>,
    pub(in crate::engine) len: Option<u32>,
    /// Nothing of it has arrived.
    pub(in crate::engine) is_unseen: bool,
    /// Missing ranges. Empty if nothing has arrived.
    pub(in crate::engine) missing: Vec<Range<u32>>,
    /// Missing ranges have been requested and have not arrived yet.
    pub(in crate::engine) is_repairing: bool,
    /// The last request was for a repair over XP.
    pub(in crate::engine) is_bulk: bool,
    /// The receive of that repair has not ended.
    pub(in crate::engine) awaits_bulk: bool,
    pub(in crate::engine) bulk_tries: u8,
    /// The sender is no longer needed: everything has arrived, or the rest is accepted as lost.
    pub(in crate::engine) settled: bool,
    /// The step that takes it.
    pub(in crate::engine) expected: Option<Expected>,
    /// Bytes of loss reserved for it.
    pub(in crate::engine) reserved: u64,
    /// Nothing reads its slot any more.
    pub(in crate::engine) folded: bool,
}

impl Incoming {
    pub(in crate::engine) fn is_whole(&self) -> bool {
        self.ended && !self.is_unseen && self.missing.is_empty()
    }

    /// The missing ranges of a message that should have `len` bytes.
    pub(in crate::engine) fn holes(&self, len: usize) -> Vec<Range<u32>> {
        let whole = 0..len as u32;
        if self.is_unseen { vec![whole] } else { self.missing.clone() }
    }

    pub(in crate::engine) fn missing_bytes(&self, len: usize) -> u64 {
        self.holes(len).iter().map(|hole| u64::from(hole.end - hole.start)).sum()
    }

    /// Whether it lacks so much that RC would take many round trips to repair it.
    fn lacks_much(&self, bulk_bytes: u32) -> bool {
        let Some(expected) = self.expected else { return false };
        let holes = self.holes(expected.len);
        let (Some(first), Some(last)) = (holes.first(), holes.last()) else { return false };
        let bytes = self.missing_bytes(expected.len);
        let whole = u64::from(last.end - first.start);
        self.bulk_tries < MAX_BULK_TRIES
            && bytes >= u64::from(bulk_bytes)
            && bytes * MAX_BULK_RATIO >= whole
    }
}

/// Messages from one rank, by number.
#[derive(Debug, Default)]
pub(in crate::engine) struct Inbox {
    /// Number of the first message in `ring`.
    pub(in crate::engine) first: u64,
    /// One message for each slot.
    pub(in crate::engine) ring: VecDeque<Incoming>,
    /// The sender has sent or skipped all messages before this one.
    pub(in crate::engine) reached: u64,
    /// All messages before this one are settled.
    pub(in crate::engine) settled: u64,
    /// All messages before this one have been assigned to steps.
    taken: u64,
    /// Steps whose messages are beyond the ring; `None` where a step has stopped waiting.
    pub(in crate::engine) waiting: VecDeque<Option<Expected>>,
    /// The counts last reported to the sender.
    told: Counts,
    /// Requests for repairs over XP.
    pub(in crate::engine) bulk: Bulk,
    /// Messages to be requested again.
    pub(in crate::engine) nacks: VecDeque<u64>,
    /// Number of operations whose duration the sender has reported.
    pub(in crate::engine) proposals: u64,
}

impl Inbox {
    pub(in crate::engine) fn new(slots: u16) -> Inbox {
        let ring = (0..slots).map(|_| Incoming::default()).collect();
        Inbox { ring, bulk: Bulk::new(slots), ..Inbox::default() }
    }

    pub(in crate::engine) fn slot(&self, number: u64) -> u16 {
        (number % self.ring.len().max(1) as u64) as u16
    }

    /// The number of the message in a slot.
    pub(in crate::engine) fn number(&self, slot: u16) -> Option<u64> {
        let slots = self.ring.len() as u64;
        let slot = Some(u64::from(slot)).filter(|slot| *slot < slots)?;
        Some(self.first + (slot + slots - self.first % slots) % slots)
    }

    /// The number after the last message of the ring.
    pub(in crate::engine) fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    pub(in crate::engine) fn get(&mut self, number: u64) -> Option<&mut Incoming> {
        let index = number.checked_sub(self.first)?;
        self.ring.get_mut(index as usize)
    }

    /// Assigns the next unassigned message of the ring to the next waiting step. Returns its number
    /// and the step.
    pub(in crate::engine) fn assign(&mut self) -> Option<(u64, Option<Expected>)> {
        if self.taken >= self.end() {
            return None;
        }
        let expected = self.waiting.pop_front()?;
        let number = self.taken;
        self.taken += 1;
        if let Some(message) = self.get(number) {
            message.expected = expected;
        }
        Some((number, expected))
    }

    /// Marks a message as settled.
    pub(in crate::engine) fn settle(&mut self, number: u64) {
        if let Some(message) = self.get(number) {
            message.settled = true;
        }
        let first = self.first;
        while self.ring.get((self.settled - first) as usize).is_some_and(|m| m.settled) {
            self.settled += 1;
        }
    }

    /// Decides how a message is repaired that is now requested. Returns whether over XP.
    pub(in crate::engine) fn request(&mut self, number: u64, bulk_bytes: u32) -> bool {
        let lacks_much = self.get(number).is_some_and(|message| message.lacks_much(bulk_bytes));
        let is_bulk = lacks_much && self.bulk.request(number);
        if let Some(message) = self.get(number) {
            (message.is_bulk, message.awaits_bulk) = (is_bulk, is_bulk);
            message.bulk_tries += u8::from(is_bulk);
        }
        is_bulk
    }

    /// Advances the ring past a free slot. Returns the number of its old message.
    pub(in crate::engine) fn advance(&mut self) -> Option<u64> {
        let front = self.ring.front()?;
        let is_free = front.ended && front.settled && front.folded;
        let is_free = is_free && !front.is_repairing && !front.awaits_bulk;
        if !is_free || self.first >= self.reached {
            return None;
        }
        self.ring.pop_front();
        self.ring.push_back(Incoming::default());
        self.first += 1;
        Some(self.first - 1)
    }

    fn counts(&self) -> Counts {
        let behind = self.ring.iter().skip((self.settled - self.first) as usize);
        let ended = self.settled + behind.take_while(|message| message.ended).count() as u64;
        Counts { free: self.first, settled: self.settled, ended }
    }

    /// Whether the sender does not know the current progress.
    pub(in crate::engine) fn is_untold(&self) -> bool {
        self.counts() != self.told
    }

    /// The progress to report to the sender.
    pub(in crate::engine) fn tell(&mut self) -> u16 {
        self.told = self.counts();
        self.told.to_bits()
    }

    /// Steps that wait for a message.
    pub(in crate::engine) fn expected(&self) -> impl Iterator<Item = &Expected> {
        let open = self.ring.iter().filter(|message| !message.settled);
        open.filter_map(|message| message.expected.as_ref()).chain(self.waiting.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::OpId;
    use crate::engine::peer::StepOf;

    fn whole() -> Incoming {
        Incoming { ended: true, folded: true, ..Incoming::default() }
    }

    #[test]
    fn slots_and_numbers_go_together() {
        let mut inbox = Inbox::new(3);
        for number in 0..20 {
            for ahead in 0..3 {
                assert_eq!(inbox.number(inbox.slot(number + ahead)), Some(number + ahead));
            }
            assert_eq!(inbox.number(3), None);
            *inbox.get(number).unwrap() = whole();
            inbox.settle(number);
            assert_eq!(inbox.advance(), None, "the sender has not passed it");
            inbox.reached = number + 1;
            assert_eq!(inbox.advance(), Some(number));
        }
    }

    #[test]
    fn a_message_that_lacks_much_is_repaired_over_xp_but_not_for_ever() {
        let at = StepOf { op: OpId(0), step: 0 };
        let request = |missing: &[Range<u32>], len: usize, is_unseen: bool| {
            let mut inbox = Inbox::new(1);
            let expected = Some(Expected { at, term: 0, len });
            let message = Incoming { is_unseen, missing: missing.to_vec(), expected, ..whole() };
            inbox.ring[0] = message;
            inbox.request(0, 100)
        };
        assert!(request(&[], 100, true));
        assert!(!request(&[], 99, true), "little is missing");
        assert!(request(&[0..50, 350..400], 1000, false));
        assert!(!request(&[0..50, 351..401], 1000, false), "much between it has arrived");
        let mut inbox = Inbox::new(1);
        let expected = Some(Expected { at, term: 0, len: 500 });
        inbox.ring[0] = Incoming { is_unseen: true, expected, ..whole() };
        for turn in 0..4 {
            assert_eq!(inbox.request(0, 100), turn < MAX_BULK_TRIES);
            assert_eq!(inbox.bulk.end(0), (turn < MAX_BULK_TRIES).then_some(0));
            assert_eq!(inbox.bulk.advance(), (turn < MAX_BULK_TRIES).then_some(0));
        }
    }

    #[test]
    fn a_slot_waits_for_its_repair() {
        let mut inbox = Inbox::new(2);
        inbox.reached = 2;
        for number in [1, 0] {
            *inbox.get(number).unwrap() = whole();
            inbox.get(number).unwrap().is_repairing = number == 0;
            inbox.settle(number);
            assert_eq!(inbox.settled, if number == 1 { 0 } else { 2 }, "all up to here");
        }
        assert_eq!(inbox.advance(), None);
        (inbox.get(0).unwrap().is_repairing, inbox.get(0).unwrap().awaits_bulk) = (false, true);
        assert_eq!(inbox.advance(), None, "XP may still write it");
        inbox.get(0).unwrap().awaits_bulk = false;
        assert_eq!([inbox.advance(), inbox.advance(), inbox.advance()], [Some(0), Some(1), None]);
        assert!(inbox.is_untold());
        let told = Counts { free: 2, settled: 2, ended: 2 };
        assert_eq!(inbox.tell(), told.to_bits());
        assert!(!inbox.is_untold());
        inbox.get(2).unwrap().ended = true;
        assert!(inbox.is_untold(), "it is in flight no more, though it may lack something");
        assert_eq!(inbox.tell(), Counts { ended: 3, ..told }.to_bits());
    }
}
