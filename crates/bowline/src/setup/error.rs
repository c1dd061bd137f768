//! Why a connection could not be set up.

use std::io;

use bowline_peers::{PeerError, PublicKey, Refusal};

use super::message::{MAGIC, MAX_BODY, MAX_REGIONS, VERSION};
use crate::Fault;

/// Why a connection could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The other end speaks another protocol.
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
    /// A field with an invalid value.
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
    /// Something that needs the peer's admission was requested before the peer had given it.
    #[error("the peer has not let this end in yet: receive something first")]
    NotAdmitted,
    /// The peer closed the connection before the exchange was over.
    #[error("the peer closed the connection during setup: its own error says why")]
    Closed,
    /// The peer took too long.
    #[error("timed out {doing}: is the peer running, and does it expect this connection?")]
    TimedOut {
        /// What was being waited for.
        doing: &'static str,
    },
    /// The peer ended the exchange, and why.
    #[error("the peer refused: {refusal}{}", advice(*refusal, ours))]
    Refused {
        /// Why.
        refusal: Refusal,
        /// This end's key, if it has shown one.
        ours: Option<PublicKey>,
    },
    /// This end has refused the peer.
    #[error("refused a peer: {}", describe(*refusal, theirs))]
    Rejected {
        /// Why.
        refusal: Refusal,
        /// The peer's key, if it has shown one.
        theirs: Option<PublicKey>,
    },
    /// The peer is not the expected one, or cannot prove its identity.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The peer has another secret, so it could not open our packets.
    #[error("the peer has another key to seal with: give both ends the same one")]
    WrongSecret,
    /// The peer's queue pairs are not sealed.
    #[error(
        "this end seals its packets and the peer does not: ask for it on both ends or on neither"
    )]
    Unsealed,
    /// TCP failed.
    #[error("the setup connection failed: {0}")]
    Io(#[source] io::Error),
}

impl SetupError {
    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        match self {
            SetupError::TooManyRegions { .. } => Fault::Caller,
            SetupError::Peer(PeerError::Io { .. } | PeerError::Random) => Fault::Resource,
            SetupError::TimedOut { .. } | SetupError::Io(_) => Fault::Path,
            _ => Fault::Peer,
        }
    }
}

/// Advice for the owner of a refused end.
fn advice(refusal: Refusal, ours: &Option<PublicKey>) -> String {
    match (refusal, ours) {
        (Refusal::UnknownKey, Some(key)) => format!(
            "; ask its owner to run `bowline key trust {key}` there, or to start it with --code"
        ),
        _ => String::new(),
    }
}

/// Describes a refusal to the owner of this end.
fn describe(refusal: Refusal, theirs: &Option<PublicKey>) -> String {
    match (refusal, theirs) {
        (Refusal::UnknownKey, Some(key)) => format!(
            "its key is not known (fingerprint {}); to let it in, run `bowline key trust {key}`",
            key.fingerprint()
        ),
        (Refusal::WrongCode, _) => "it had a wrong code, and the code is void now".to_owned(),
        (Refusal::NoCode, _) => "it wanted to use a code, and none is open".to_owned(),
        (Refusal::Unauthenticated, _) => {
            "it did not say who it is, which only --insecure or this host itself may".to_owned()
        }
        _ => "it wanted to authenticate, and this end does not".to_owned(),
    }
}
