//! What an engine asks its owner to do.

use std::ops::Range;

use bowline_nic::Time;

use super::OpId;
use crate::Rank;
use crate::schedule::Span;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Write a span into a slot of a peer, with immediate data.
    Write {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// The operation that the memory belongs to.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate.
        imm: u32,
        /// The bytes must be copied now.
        inline: bool,
    },
    /// Send immediate data without payload.
    Note {
        /// The peer.
        to: Rank,
        /// The immediate.
        imm: u32,
    },
    /// Write a span into a slot of a peer over XP, with immediate data. It completes by its
    /// deadline, however much has been sent.
    Express {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// The operation that the memory belongs to.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate.
        imm: u32,
        /// The deadline.
        deadline: Time,
    },
    /// Write a range that a peer is missing into the peer's slot over RC.
    Repair {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// Offset in the slot.
        offset: u32,
        /// The operation that the memory belongs to.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate data, on the last range of a message.
        imm: Option<u32>,
    },
    /// Write a range that a peer is missing into the peer's slot, over the XP queue pair for
    /// repairs. Report when it [has been sent](super::Engine::bulk_sent).
    Bulk {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// Offset in the slot.
        offset: u32,
        /// The operation that the memory belongs to.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate.
        imm: u32,
    },
    /// Tell a peer over RC which ranges of its message in a slot are
    /// [missing](super::Engine::missing).
    Nack {
        /// The peer.
        to: Rank,
        /// The slot here.
        slot: u16,
        /// The immediate.
        imm: u32,
    },
    /// Post the next receive for a peer's messages over XP, for this slot.
    Open {
        /// The peer.
        from: Rank,
        /// The slot.
        slot: u16,
    },
    /// Make the receive for a slot end at this time.
    End {
        /// The peer.
        from: Rank,
        /// The slot.
        slot: u16,
        /// The time.
        at: Time,
    },
    /// Retransmit what a peer has not acknowledged over RC.
    Resend {
        /// The peer.
        to: Rank,
    },
    /// Compute a fold, and call [`super::Engine::folded`] before the next poll.
    Fold {
        /// The operation.
        op: OpId,
        /// The step of its schedule.
        step: u32,
    },
}

/// An operand of a fold, by its location in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldTerm<'a> {
    /// Memory of the operation.
    Memory(Span),
    /// The message in one of a peer's slots.
    Slot {
        /// The peer.
        of: Rank,
        /// The slot.
        slot: u16,
        /// Missing ranges, in order.
        missing: &'a [Range<u32>],
    },
    /// A message that is missing entirely.
    Absent,
}
