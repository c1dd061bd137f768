//! What an engine wants done.

use std::ops::Range;

use bowline_nic::Time;

use super::OpId;
use crate::Rank;
use crate::schedule::Span;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Write a span into a slot of a peer, with an immediate.
    Write {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// The operation whose memory it is.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate.
        imm: u32,
        /// Its bytes must be copied now.
        inline: bool,
    },
    /// Send an immediate without bytes.
    Note {
        /// The peer.
        to: Rank,
        /// The immediate.
        imm: u32,
    },
    /// Write a span into a slot of a peer over XP, with an immediate. By its deadline it is over,
    /// whatever has been sent.
    Express {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// The operation whose memory it is.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate.
        imm: u32,
        /// When it is over.
        deadline: Time,
    },
    /// Write what a peer misses into a slot of it over RC.
    Repair {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// Where in the slot.
        offset: u32,
        /// The operation whose memory it is.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate, with the last of a message.
        imm: Option<u32>,
    },
    /// Tell a peer over RC what is [missing](super::Engine::missing) of its message in a slot.
    Nack {
        /// The peer.
        to: Rank,
        /// The slot here.
        slot: u16,
        /// The immediate.
        imm: u32,
    },
    /// Post the next receive of a peer's messages over XP, for this slot.
    Open {
        /// The peer.
        from: Rank,
        /// The slot.
        slot: u16,
    },
    /// Let the receive for a slot end at this time.
    End {
        /// The peer.
        from: Rank,
        /// The slot.
        slot: u16,
        /// When.
        at: Time,
    },
    /// Send again what a peer has not acknowledged over RC.
    Resend {
        /// The peer.
        to: Rank,
    },
    /// Compute a fold, and say so by [`super::Engine::folded`] before the next call.
    Fold {
        /// The operation.
        op: OpId,
        /// The step of its schedule.
        step: u32,
    },
}

/// What a fold combines, as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldTerm<'a> {
    /// Memory of the operation.
    Memory(Span),
    /// The message in a slot of a peer.
    Slot {
        /// The peer.
        of: Rank,
        /// The slot.
        slot: u16,
        /// Ranges that are missing, in order.
        missing: &'a [Range<u32>],
    },
    /// A message that is missing.
    Absent,
}
