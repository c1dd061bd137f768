//! Errors, and what to do about them.

use bowline_nic::{ControlError, ModifyError, PostError};

/// Why an SDR call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SdrError {
    /// A configuration value is not valid.
    #[error("{what}: {why}")]
    Config {
        /// Which.
        what: &'static str,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// The peer's parameters do not fit ours.
    #[error("the peer has {what} {theirs}, this end {ours}: configure both alike")]
    Mismatch {
        /// Which parameter.
        what: &'static str,
        /// Ours.
        ours: String,
        /// Theirs.
        theirs: String,
    },
    /// The peer's connection data cannot be read.
    #[error("the peer's connection data is malformed: {0}")]
    Info(&'static str),
    /// The peer's release speaks another version of the protocol.
    #[error(
        "the peer's SDR is version {theirs}, this end version {ours}: run the same release of Bowline on both ends"
    )]
    Version {
        /// The peer's.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// The QP has no peer yet.
    #[error("the SDR QP is not connected: call connect first")]
    NotConnected,
    /// Of several QPs that carry messages together, some accepted one and another refused it.
    #[error(
        "some lanes refused a message that others took, so the connection is unusable: make a new one"
    )]
    OutOfStep,
    /// The message is too long.
    #[error("a message of {len} bytes is longer than the {max} that the QP was made for")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Most that are possible.
        max: u64,
    },
    /// Too many messages at once.
    #[error("{max} messages are outstanding: complete some first")]
    Full {
        /// Most that are possible.
        max: u32,
    },
    /// The message's place was used so recently that late packets could be mistaken for its own.
    #[error("the message's ID was in use less than the lateness allowed ago: try again later")]
    Quarantined,
    /// The handle's message is over.
    #[error("the message is complete already")]
    Complete,
    /// A piece of a stream does not begin at a packet, or extends beyond the message.
    #[error("bytes {offset}..+{len} are not whole packets of a message of {total} bytes")]
    Piece {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the message.
        total: u64,
    },
    /// The connection does not have this scheme.
    #[error("the connection has no scheme {0}")]
    NoSuchScheme(String),
    /// The NIC refused to create or change an object.
    #[error(transparent)]
    Nic(#[from] ControlError),
    /// The NIC refused to change a QP.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The NIC refused a work request.
    #[error(transparent)]
    Post(#[from] PostError),
}
