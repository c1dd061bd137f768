//! Why a group failed, and which rank caused it.

use crate::Rank;

/// Why a group failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The rank does not acknowledge: its process has ended or is stopped, or the network is cut.
    Unreachable,
    /// The rank left the group while others needed it.
    Left,
    /// The rank runs another operation, or the same one with another size or type.
    Mismatch,
    /// The rank sent a message that no member of a group sends.
    Protocol,
    /// The rank did not send its part before the operation's time limit.
    Late,
    /// The rank gave up for a reason of its own.
    Local,
}

impl Cause {
    /// All causes, by code.
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
                "does not answer: check whether its process is running and the network is up"
            }
            Cause::Left => "has left the group while others were in an operation",
            Cause::Mismatch => {
                "called another operation, or the same one with another size or type: \
                 all ranks must call the same operations in the same order"
            }
            Cause::Protocol => "broke the protocol: run the same release on all ranks",
            Cause::Late => "did not send its part before the time limit",
            Cause::Local => "gave up: its own error says why",
        }
    }
}

/// Why the operations of a group fail. A group does not recover: create a new one without the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} {}", .cause.text())]
pub struct Failure {
    /// The rank that caused the failure.
    pub rank: Rank,
    /// What it did.
    pub cause: Cause,
}
