//! Messages between two ranks over XP: numbered, possibly lost, possibly repaired.

mod bulk;
mod inbox;
mod outbox;

use bulk::Bulk;
pub(super) use inbox::{Inbox, Incoming};
pub(super) use outbox::{Outbox, Repair};

/// What an engine knows about the messages over XP to and from one other rank.
#[derive(Debug, Default)]
pub(super) struct Express {
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
}
