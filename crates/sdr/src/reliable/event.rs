//! The outcome of messages.

use std::iter::Sum;

use super::{RecvId, WriteId};
use crate::table::LandingStats;

/// Why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing was heard about it for longer than the connection's timeout.
    #[error("nothing was heard of the message within the timeout")]
    TimedOut,
    /// The other end gave up on it.
    #[error("the peer gave up on the message")]
    Aborted,
    /// It is longer than the buffer that was posted for it.
    #[error("the message is longer than the receive that was posted for it")]
    TooLong,
    /// Nothing was heard from this group member for longer than the connection's timeout.
    #[error("nothing was heard from member {0} of the group within the timeout")]
    MemberTimedOut(usize),
    /// This group member gave up on it.
    #[error("member {0} of the group gave up on the message")]
    MemberGaveUp(usize),
    /// The local NIC failed, or the memory was deregistered.
    #[error("this host's NIC refused to send the message")]
    Local,
}

impl Failure {
    /// The group member that caused the failure.
    pub fn member(&self) -> Option<usize> {
        match *self {
            Failure::MemberTimedOut(member) | Failure::MemberGaveUp(member) => Some(member),
            _ => None,
        }
    }
}

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReliableEvent {
    /// A message has fully reached the peer, or failed; its buffer is the caller's again.
    Written {
        /// Which.
        id: WriteId,
        /// Its outcome.
        result: Result<(), Failure>,
    },
    /// A message has fully arrived, or failed; its buffer is the caller's again.
    Received {
        /// Which.
        id: RecvId,
        /// Its length.
        len: u64,
        /// The sender's 32 bits.
        imm: Option<u32>,
        /// Its outcome.
        result: Result<(), Failure>,
    },
}

/// Statistics of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReliableStats {
    /// Chunks retransmitted.
    pub chunks_resent: u64,
    /// Chunks reconstructed from parity.
    pub chunks_recovered: u64,
    /// What has landed here.
    pub landing: LandingStats,
}

impl Sum for ReliableStats {
    fn sum<I: Iterator<Item = ReliableStats>>(stats: I) -> ReliableStats {
        stats.fold(ReliableStats::default(), |a, b| ReliableStats {
            chunks_resent: a.chunks_resent + b.chunks_resent,
            chunks_recovered: a.chunks_recovered + b.chunks_recovered,
            landing: LandingStats {
                packets: a.landing.packets + b.landing.packets,
                duplicates: a.landing.duplicates + b.landing.duplicates,
                late: a.landing.late + b.landing.late,
                refused: a.landing.refused + b.landing.refused,
            },
        })
    }
}
