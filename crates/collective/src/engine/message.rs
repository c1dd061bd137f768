//! What 32 bits of immediate say about a message.

use super::failure::Cause;
use crate::Rank;

const NOTE: u16 = 0xfe00;
const BYE: u16 = 0xfe01;
const ABORT: u16 = 0xff00;

/// What a message is. The upper 16 bits of its immediate say which, the lower 16 are a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A chunk of an operation, with its tag; the number is the credit.
    Data(u16),
    /// Only a credit.
    Note,
    /// A credit, and the last message.
    Bye,
    /// The group has failed; the number is the rank at fault.
    Abort(Cause),
}

pub(super) fn encode(kind: Kind, number: u16) -> u32 {
    let upper = match kind {
        Kind::Data(tag) => tag,
        Kind::Note => NOTE,
        Kind::Bye => BYE,
        Kind::Abort(cause) => ABORT | u16::from(cause.code()),
    };
    u32::from(upper) << 16 | u32::from(number)
}

/// `None` for what no release of this protocol sends.
pub(super) fn decode(imm: u32) -> Option<(Kind, u16)> {
    let (upper, number) = ((imm >> 16) as u16, imm as u16);
    let kind = match upper {
        NOTE => Kind::Note,
        BYE => Kind::Bye,
        ABORT.. => Kind::Abort(Cause::from_code(upper as u8)?),
        0..NOTE => Kind::Data(upper),
        _ => return None,
    };
    Some((kind, number))
}

/// The tag of the messages of an operation: ranks that are in different operations most likely notice.
pub(super) fn tag(fingerprint: u64, sequence: u64) -> u16 {
    let mixed = (fingerprint ^ sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) % u64::from(NOTE)) as u16
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
        let data = [0, 1, 0xfdff].map(Kind::Data);
        for kind in causes.into_iter().chain(data).chain([Kind::Note, Kind::Bye]) {
            for number in [0, 1, u16::MAX] {
                assert_eq!(decode(encode(kind, number)), Some((kind, number)));
            }
        }
        assert_eq!(decode(0xfe02_0000), None);
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
}
