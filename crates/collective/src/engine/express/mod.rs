//! Messages between two ranks over XP: numbered, perhaps lost, perhaps repaired.

mod inbox;
mod outbox;

pub(super) use inbox::Inbox;
pub(super) use outbox::{Outbox, Repair};

/// What an engine knows of the messages over XP to and from one other rank.
#[derive(Debug, Default)]
pub(super) struct Express {
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
}
