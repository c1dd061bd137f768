//! Errors between peers that do not know each other.

use std::io;
use std::path::PathBuf;

use crate::PublicKey;

/// Why the accepting end closed a connection. It is sent as one byte, so that no text from an
/// unauthenticated peer is ever displayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The code was wrong, and is void now.
    WrongCode = 1,
    /// No code is open at that end.
    NoCode = 2,
    /// The connection was not authenticated, and that end requires it.
    Unauthenticated = 3,
    /// That end does not know this end's key.
    UnknownKey = 4,
    /// That end works only without authentication.
    NoKeys = 5,
}

impl Refusal {
    /// From its byte.
    pub fn from_byte(byte: u8) -> Option<Refusal> {
        [
            Refusal::WrongCode,
            Refusal::NoCode,
            Refusal::Unauthenticated,
            Refusal::UnknownKey,
            Refusal::NoKeys,
        ]
        .into_iter()
        .find(|refusal| *refusal as u8 == byte)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::WrongCode => "the code is wrong, and void now: ask for a new one",
            Refusal::NoCode => "no code is open there: start that end with --code",
            Refusal::Unauthenticated => {
                "it wants to know who connects: leave --insecure out here, or add --seal on loopback"
            }
            Refusal::UnknownKey => "it does not know this end's key",
            Refusal::NoKeys => {
                "it speaks without authentication only: add --insecure if the network is trusted"
            }
        })
    }
}

/// Why a peer could not be authenticated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A handshake message that is not the expected one, or was made with another key.
    #[error("the peer could not be authenticated: its {what} is not valid")]
    Invalid {
        /// Which message.
        what: &'static str,
    },
    /// A message under the session's keys that fails to decrypt: modified in transit, or replayed.
    #[error("a message was changed on the way: somebody interferes with this connection")]
    Changed,
    /// The code is not the peer's.
    #[error("the code is not the one that the other end shows; it is void now: ask for a new one")]
    WrongCode,
    /// An invalid code.
    #[error("{text:?} is no code: write its three words, e.g. {example}")]
    NotACode {
        /// What was given.
        text: String,
        /// What one looks like.
        example: String,
    },
    /// An invalid key.
    #[error("{text:?} is no key: write it as `bowline key show` prints it, e.g. bowline1:wXk…")]
    NotAKey {
        /// What was given.
        text: String,
    },
    /// The host is not known yet.
    #[error(
        "{host} is not known yet; its key has the fingerprint {fingerprint}: compare it with what \
         `bowline key show` prints there, then run `bowline key trust --host {host} {key}`, or use \
         a code: start that end with --code"
    )]
    UnknownHost {
        /// As the user named it.
        host: String,
        /// The key that it presented.
        key: PublicKey,
        /// The fingerprint for the user to compare.
        fingerprint: String,
    },
    /// The host has another key than before.
    #[error(
        "THE KEY OF {host} HAS CHANGED: it was {before} and is {now} now. Either it was made anew \
         there, or somebody sits in between: ask its owner. If the new one is right, run `bowline key \
         forget {host}` and try again"
    )]
    ChangedHost {
        /// As the user named it.
        host: String,
        /// Fingerprint of the key that is known.
        before: String,
        /// Fingerprint of the key that it presented.
        now: String,
    },
    /// A bad line in a trust file.
    #[error("{path}, line {line}: {why}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// The secret key can be read by others.
    #[error(
        "{path} has mode {mode:o}, so that others can read this host's key: run `chmod 600 {path}`, \
         and `bowline key new --force` if somebody may have read it",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is a key already.
    #[error(
        "{path} has a key already: peers know this host by it; `bowline key new --force` replaces it",
        path = path.display()
    )]
    KeyExists {
        /// The file.
        path: PathBuf,
    },
    /// There is no directory for keys.
    #[error("neither XDG_CONFIG_HOME nor HOME is set: set one, so that keys have a place")]
    NoHome,
    /// A file could not be read or written.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system gives no random numbers.
    #[error("cannot get random numbers from the system")]
    Random,
}
