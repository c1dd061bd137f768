//! Why a connection could not be set up.

use std::io;

use super::message::{MAGIC, MAX_BODY, MAX_REGIONS, VERSION};
use crate::Fault;

/// Why a connection could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The other end speaks something else.
    #[error(
        "the peer does not speak Bowline's setup protocol (it sent {0:02x?}, not {MAGIC:02x?}): \
         check host and port"
    )]
    WrongMagic([u8; 4]),
    /// The other end speaks another version.
    #[error(
        "the peer speaks version {theirs} of the setup protocol and this side version {VERSION}: \
         run the same release on both ends"
    )]
    WrongVersion {
        /// The version it speaks.
        theirs: u8,
    },
    /// A message of another kind than the one due.
    #[error(
        "the peer sent message kind {kind} where kind {expected} is due: both ends must go \
         through the same steps"
    )]
    Unexpected {
        /// The kind that came.
        kind: u8,
        /// The kind that was due.
        expected: u8,
    },
    /// A message longer than the protocol allows.
    #[error("a setup message of {len} bytes is longer than the {MAX_BODY} allowed")]
    TooLong {
        /// The length claimed or given.
        len: u64,
    },
    /// More regions than a message may list.
    #[error("{count} regions in one message, but {MAX_REGIONS} are allowed")]
    TooManyRegions {
        /// How many.
        count: usize,
    },
    /// A message ended in the middle of a field.
    #[error("the peer's message ends too early")]
    Truncated,
    /// A field that cannot be.
    #[error("the peer's message has an invalid {0}")]
    Invalid(&'static str),
    /// The peer's queue pair cannot talk to this one.
    #[error("the peer's {what} is {theirs} and this side's {ours}: they must be alike")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// The peer's.
        theirs: String,
        /// This side's.
        ours: String,
    },
    /// The peer closed the connection before the exchange was over.
    #[error("the peer closed the connection during setup: its own error says why")]
    Closed,
    /// The peer took too long.
    #[error("timed out {doing}: is the peer running, and does it expect this connection?")]
    TimedOut {
        /// What was waited for.
        doing: &'static str,
    },
    /// TCP failed.
    #[error("the setup connection failed: {0}")]
    Io(#[source] io::Error),
}

impl SetupError {
    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        match self {
            SetupError::TooManyRegions { .. } => Fault::Caller,
            SetupError::TimedOut { .. } | SetupError::Io(_) => Fault::Path,
            _ => Fault::Peer,
        }
    }
}
