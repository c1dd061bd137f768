//! Switches on other hosts: a controller gives them their tables (`docs/multicast.md`).
//!
//! [`GroupSwitch::serve_controller`](super::GroupSwitch::serve_controller) is the switch's side of
//! a connection, and [`RemoteSwitch`] the controller's. A [`SwitchTree`] has a switch of this
//! process as its root and such switches below; it creates groups over all of them, and changes
//! them while they are in use.

mod managed;
mod message;
mod remote;
#[cfg(test)]
mod tests;
mod tree;
mod tree_group;

use std::time::Duration;

use bowline_wire::Psn;
use thiserror::Error;

pub use message::RemoteStatus;
pub(crate) use message::{GroupSpec, Info};
pub use remote::RemoteSwitch;
pub use tree::{Shape, SwitchTree};
pub use tree_group::TreeGroup;

use message::VERSION;

/// A switch removes the tables of a controller that it has not heard from for this long.
pub const LEASE: Duration = Duration::from_secs(10);

/// Reads a message of either end, for fuzzers.
///
/// # Panics
/// If a message is accepted that would not be understood in the same way when it is sent on.
#[doc(hidden)]
pub fn play_message(bytes: &[u8]) {
    message::play(bytes);
}

/// Why a controller and a switch on another host do not agree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The other end has another version.
    #[error(
        "the other end speaks version {theirs} of the switch protocol and this end version \
         {VERSION}: run the same release on both"
    )]
    Version {
        /// Its version.
        theirs: u8,
    },
    /// A message that the protocol does not allow.
    #[error("the other end sent a message with an invalid {0}: is it a managed switch?")]
    Malformed(&'static str),
    /// The switch has refused, and said why.
    #[error("the switch refused: {0}")]
    Refused(String),
    /// A group that this controller does not have at the switch.
    #[error("this controller has no such group here: reserve one first")]
    NoGroup,
    /// IDs that the switch has not given to this group.
    #[error("this group has no such ID: reserve it first")]
    NoId,
    /// Another sender than before.
    #[error("the sender of a group cannot change: create another group")]
    Sender,
    /// A queue pair of the switch itself, whose packets would circle.
    #[error("the switch cannot be a member or the sender of its own group")]
    Itself,
    /// A controller has too many groups.
    #[error("one controller may have {0} groups at a switch")]
    TooMany(usize),
    /// Too many members have joined a group.
    #[error("one group may have had {0} members at a switch: create another group")]
    TooManyIds(usize),
    /// The sender has sent more since the PSN of the new member was chosen.
    #[error("the sender is at PSN {next:?} and the new member at {asked:?}: join again")]
    Moved {
        /// The new member's.
        asked: Psn,
        /// The sender's, if it is known.
        next: Option<Psn>,
    },
    /// Where members or switches are attached makes no tree.
    #[error("no tree: {0}")]
    Shape(&'static str),
}
