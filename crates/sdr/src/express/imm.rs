//! The immediate of a packet: its kind, its message and its fragment.

use bowline_nic::ImmSeries;

const MESSAGE_BITS: u32 = 12;
const FRAGMENT_BITS: u32 = 32 - 3 - MESSAGE_BITS;

/// Most fragments of a message.
pub const MAX_FRAGMENTS: u32 = 1 << FRAGMENT_BITS;
/// Message numbers in an immediate are modulo this.
pub(super) const MESSAGES: u64 = 1 << MESSAGE_BITS;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A fragment of a message.
    Data {
        /// The message is a WRITE, not a SEND.
        write: bool,
        /// The message has a user immediate.
        imm: bool,
        /// It is the last fragment.
        last: bool,
    },
    /// Half of the user's immediate.
    Half {
        /// The upper 16 bits, rather than the lower.
        upper: bool,
    },
}

impl Op {
    fn code(self) -> u32 {
        match self {
            Op::Data { write, imm, last } => match (write, imm) {
                (false, false) => u32::from(last),
                (false, true) => 2 + u32::from(last),
                (true, _) => 6 + u32::from(last),
            },
            Op::Half { upper } => 4 + u32::from(upper),
        }
    }

    fn from_code(code: u32) -> Op {
        match code {
            4 | 5 => Op::Half { upper: code == 5 },
            _ => Op::Data { write: code >= 6, imm: code >= 2, last: code % 2 == 1 },
        }
    }
}

/// The immediates of packets of a message, from `fragment` on.
pub(super) fn series(op: Op, message: u64, fragment: u32) -> ImmSeries {
    let message = (message % MESSAGES) as u32;
    ImmSeries {
        base: op.code() << (32 - 3) | message << FRAGMENT_BITS,
        first: fragment,
        word: 0,
        fragment_bits: 0,
    }
}

/// Splits an immediate: its kind, the message's number modulo [`MESSAGES`], the fragment.
pub(super) fn split(imm: u32) -> (Op, u64, u32) {
    let message = imm >> FRAGMENT_BITS & (MESSAGES as u32 - 1);
    (Op::from_code(imm >> (32 - 3)), message.into(), imm & (MAX_FRAGMENTS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_together_comes_apart() {
        for code in 0..8 {
            let op = Op::from_code(code);
            assert_eq!(op.code(), code);
            let imm = series(op, 3 * MESSAGES + 4095, MAX_FRAGMENTS - 2).imm(1);
            assert_eq!(split(imm), (op, 4095, MAX_FRAGMENTS - 1));
        }
    }
}
