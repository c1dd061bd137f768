//! The 32 bits of immediate data that describe a message.

use super::failure::Cause;
use crate::Rank;

/// Values from here on are message kinds; tags are below.
const NACK: u16 = 0xfc00;
const BULK: u16 = 0xfc80;
const REPAIR: u16 = 0xfd00;
const NOTE: u16 = 0xfe00;
const BYE: u16 = 0xfe01;
const SENT: u16 = 0xfe02;
const PROGRESS: u16 = 0xfe03;
const PROPOSAL: u16 = 0xfe04;
const CAST: u16 = 0xfe05;
const LOSS: u16 = 0xfe06;
const ABORT: u16 = 0xff00;

/// The kind of a message. The upper 16 bits of the immediate encode it; the lower 16 are a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A chunk of an operation, with its tag; the number is the credit.
    Data(u16),
    /// Part of the message in a slot is missing; the number is that of the message.
    Nack(u8),
    /// The same, and the sender should answer over XP.
    Bulk(u8),
    /// The last missing range of the message in a slot; the number is the tag.
    Repair(u8),
    /// A credit and nothing else.
    Note,
    /// A credit with the sender's last message.
    Bye,
    /// The number of messages sent over XP so far.
    Sent,
    /// The receiver's progress with messages over XP: see [`Counts`].
    Progress,
    /// How long an operation took.
    Proposal,
    /// How much of an operation was missing at its end.
    Loss,
    /// How many of the addressee's multicast messages have been folded.
    Cast,
    /// The group has failed; the number is the rank at fault.
    Abort(Cause),
}

pub(super) fn encode(kind: Kind, number: u16) -> u32 {
    let upper = match kind {
        Kind::Data(tag) => tag,
        Kind::Nack(slot) => NACK | u16::from(slot),
        Kind::Bulk(slot) => BULK | u16::from(slot),
        Kind::Repair(slot) => REPAIR | u16::from(slot),
        Kind::Note => NOTE,
        Kind::Bye => BYE,
        Kind::Sent => SENT,
        Kind::Progress => PROGRESS,
        Kind::Proposal => PROPOSAL,
        Kind::Loss => LOSS,
        Kind::Cast => CAST,
        Kind::Abort(cause) => ABORT | u16::from(cause.code()),
    };
    u32::from(upper) << 16 | u32::from(number)
}

/// `None` for anything that no version of this protocol sends.
pub(super) fn decode(imm: u32) -> Option<(Kind, u16)> {
    let (upper, number) = ((imm >> 16) as u16, imm as u16);
    let kind = match upper {
        NACK..BULK => Kind::Nack(upper as u8),
        BULK..REPAIR => Kind::Bulk((upper - BULK) as u8),
        REPAIR..NOTE => Kind::Repair(upper as u8),
        NOTE => Kind::Note,
        BYE => Kind::Bye,
        SENT => Kind::Sent,
        PROGRESS => Kind::Progress,
        PROPOSAL => Kind::Proposal,
        LOSS => Kind::Loss,
        CAST => Kind::Cast,
        ABORT.. => Kind::Abort(Cause::from_code(upper as u8)?),
        0..NACK => Kind::Data(upper),
        _ => return None,
    };
    Some((kind, number))
}

/// A receiver's progress with a peer's messages over XP. Each count is at most one ring ahead of
/// the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All slots before this one are free.
    pub(super) free: u64,
    /// All messages before this one are settled.
    pub(super) settled: u64,
    /// The receives of all messages before this one have ended: none of their packets is in flight.
    pub(super) ended: u64,
}

/// A ring has at most 16 slots, so 5 bits hold how far one count is ahead of another.
const COUNT_BITS: u32 = 5;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl Counts {
    /// Packs the counts into one number: the low bits of the first count, and how far ahead the
    /// others are.
    pub(super) fn to_bits(self) -> u16 {
        let ahead = |count: u64, of: u64| (count - of).min(COUNT_MASK);
        let free = self.free & COUNT_MASK;
        let (settled, ended) = (ahead(self.settled, self.free), ahead(self.ended, self.settled));
        (free | settled << COUNT_BITS | ended << (2 * COUNT_BITS)) as u16
    }

    /// Unpacks the counts, given how many slots the reader last knew to be free.
    pub(super) fn from_bits(bits: u16, free_before: u64) -> Counts {
        let nth = |n: u32| u64::from(bits) >> (n * COUNT_BITS) & COUNT_MASK;
        let free = free_before + (nth(0).wrapping_sub(free_before) & COUNT_MASK);
        let settled = free + nth(1);
        Counts { free, settled, ended: settled + nth(2) }
    }
}

/// The tag of an operation's messages. Ranks that run different operations most likely have
/// different tags, and notice.
pub(super) fn tag(fingerprint: u64, sequence: u64) -> u16 {
    let mixed = (fingerprint ^ sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) % u64::from(NACK)) as u16
}

/// A rank as encoded in a message.
pub(super) fn rank_number(rank: Rank) -> u16 {
    rank as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_come_back() {
        let bulk = [Kind::Bulk(0), Kind::Bulk(127)];
        let causes = Cause::ALL.map(Kind::Abort);
        let data = [0, 1, 0xfbff].map(Kind::Data);
        let repair = [Kind::Nack(0), Kind::Nack(127), Kind::Repair(0), Kind::Repair(255)];
        let plain = [
            Kind::Note,
            Kind::Bye,
            Kind::Sent,
            Kind::Progress,
            Kind::Proposal,
            Kind::Loss,
            Kind::Cast,
        ];
        for kind in causes.into_iter().chain(data).chain(repair).chain(bulk).chain(plain) {
            for number in [0, 1, u16::MAX] {
                assert_eq!(decode(encode(kind, number)), Some((kind, number)));
            }
        }
        assert_eq!(decode(0xfe07_0000), None);
        assert_eq!(decode(0xffff_0000), None);
    }

    #[test]
    fn tags_are_data() {
        for i in 0..100_000 {
            let tag = tag(i * 0x1234_5678_9abc, i);
            assert_eq!(decode(encode(Kind::Data(tag), 7)), Some((Kind::Data(tag), 7)));
        }
        assert_ne!(tag(1, 1), tag(1, 2));
    }

    #[test]
    fn counts_come_back_from_few_bits() {
        for free in [0, 5, 31, 32, 1000] {
            for (settled, ended) in [(0, 0), (0, 16), (16, 16), (3, 7)] {
                let counts = Counts { free, settled: free + settled, ended: free + ended };
                for before in free.saturating_sub(16)..=free {
                    assert_eq!(Counts::from_bits(counts.to_bits(), before), counts);
                }
            }
        }
        let most = Counts::from_bits(u16::MAX, 0);
        assert_eq!(most, Counts { free: 31, settled: 62, ended: 93 }, "whatever comes");
    }
}
