//! What 32 bits of immediate say about a message.

use super::failure::Cause;
use crate::Rank;

/// Tags are below.
const NACK: u16 = 0xfc00;
const REPAIR: u16 = 0xfd00;
const NOTE: u16 = 0xfe00;
const BYE: u16 = 0xfe01;
const SENT: u16 = 0xfe02;
const PROGRESS: u16 = 0xfe03;
const PROPOSAL: u16 = 0xfe04;
const CAST: u16 = 0xfe05;
const ABORT: u16 = 0xff00;

/// What a message is. The upper 16 bits of its immediate say which, the lower 16 are a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A chunk of an operation, with its tag; the number is the credit.
    Data(u16),
    /// Something of the message in a slot is missing; the number is the message's.
    Nack(u8),
    /// The last that was missing in a slot; the number is the tag.
    Repair(u8),
    /// Only a credit.
    Note,
    /// A credit, and the last message.
    Bye,
    /// So many messages have left over XP.
    Sent,
    /// So many messages over XP are settled, and so many slots are free: see [`progress`].
    Progress,
    /// How long an operation took.
    Proposal,
    /// So many messages that the receiver has sent to all have been folded.
    Cast,
    /// The group has failed; the number is the rank at fault.
    Abort(Cause),
}

pub(super) fn encode(kind: Kind, number: u16) -> u32 {
    let upper = match kind {
        Kind::Data(tag) => tag,
        Kind::Nack(slot) => NACK | u16::from(slot),
        Kind::Repair(slot) => REPAIR | u16::from(slot),
        Kind::Note => NOTE,
        Kind::Bye => BYE,
        Kind::Sent => SENT,
        Kind::Progress => PROGRESS,
        Kind::Proposal => PROPOSAL,
        Kind::Cast => CAST,
        Kind::Abort(cause) => ABORT | u16::from(cause.code()),
    };
    u32::from(upper) << 16 | u32::from(number)
}

/// `None` for what no release of this protocol sends.
pub(super) fn decode(imm: u32) -> Option<(Kind, u16)> {
    let (upper, number) = ((imm >> 16) as u16, imm as u16);
    let kind = match upper {
        NACK..REPAIR => Kind::Nack(upper as u8),
        REPAIR..NOTE => Kind::Repair(upper as u8),
        NOTE => Kind::Note,
        BYE => Kind::Bye,
        SENT => Kind::Sent,
        PROGRESS => Kind::Progress,
        PROPOSAL => Kind::Proposal,
        CAST => Kind::Cast,
        ABORT.. => Kind::Abort(Cause::from_code(upper as u8)?),
        0..NACK => Kind::Data(upper),
        _ => return None,
    };
    Some((kind, number))
}

/// Two counts in one number. Both are known to within the slots of a ring, which are fewer than
/// 128.
pub(super) fn progress(settled: u64, free: u64) -> u16 {
    u16::from(settled as u8) << 8 | u16::from(free as u8)
}

/// How much more than `before` a count is of which only the last bits are known.
pub(super) fn more(count: u8, before: u64) -> u64 {
    count.wrapping_sub(before as u8).into()
}

/// The tag of the messages of an operation: ranks that are in different operations most likely
/// notice.
pub(super) fn tag(fingerprint: u64, sequence: u64) -> u16 {
    let mixed = (fingerprint ^ sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) % u64::from(NACK)) as u16
}

/// A rank as a message has it.
pub(super) fn rank_number(rank: Rank) -> u16 {
    rank as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_come_back() {
        let causes = Cause::ALL.map(Kind::Abort);
        let data = [0, 1, 0xfbff].map(Kind::Data);
        let repair = [Kind::Nack(0), Kind::Nack(255), Kind::Repair(0), Kind::Repair(255)];
        let plain = [Kind::Note, Kind::Bye, Kind::Sent, Kind::Progress, Kind::Proposal, Kind::Cast];
        for kind in causes.into_iter().chain(data).chain(repair).chain(plain) {
            for number in [0, 1, u16::MAX] {
                assert_eq!(decode(encode(kind, number)), Some((kind, number)));
            }
        }
        assert_eq!(decode(0xfe06_0000), None);
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
    fn counts_wrap() {
        assert_eq!(more(3, 254), 5);
        assert_eq!(more(254, 254), 0);
        assert_eq!(progress(0x1ff, 0x1fe), 0xfffe);
    }
}
