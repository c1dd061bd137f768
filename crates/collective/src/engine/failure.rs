//! Why a group has failed, and whose fault it is.

use crate::Rank;

/// Why a group has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It does not acknowledge: its process has ended or is stopped, or the network is cut.
    Unreachable,
    /// It has left the group while others needed it.
    Left,
    /// It is in another operation, or in one of another size or type.
    Mismatch,
    /// It has sent what no member of a group sends.
    Protocol,
    /// It has not sent its part before the operation's time limit.
    Late,
    /// It has given up for a reason of its own.
    Local,
}

impl Cause {
    /// All of them, by code.
    pub const ALL: [Cause; 6] = [
        Cause::Unreachable,
        Cause::Left,
        Cause::Mismatch,
        Cause::Protocol,
        Cause::Late,
        Cause::Local,
    ];

    pub(super) fn code(self) -> u8 {
        self as u8
    }

    pub(super) fn from_code(code: u8) -> Option<Cause> {
        Cause::ALL.get(usize::from(code)).copied()
    }

    fn text(self) -> &'static str {
        match self {
            Cause::Unreachable => {
                "does not answer: has its process ended, is it stopped, or is the network cut?"
            }
            Cause::Left => "has left the group while others were in an operation",
            Cause::Mismatch => {
                "is in another operation, or in one of another size or type: \
                 all ranks must call the same operations in the same order"
            }
            Cause::Protocol => "broke the protocol: run the same release on all ranks",
            Cause::Late => "did not send its part before the time limit",
            Cause::Local => "gave up: its own error says why",
        }
    }
}

/// Why operations of a group fail. It does not recover: make a new group without the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} {}", .cause.text())]
pub struct Failure {
    /// The rank at fault.
    pub rank: Rank,
    /// What it did.
    pub cause: Cause,
}
