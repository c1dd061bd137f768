//! Authenticates peers: identities as X25519 keys, files of trusted keys, one-time codes, and the
//! handshake that proves them.
//!
//! [`Handshake`] and [`Session`] are sans-IO: they turn messages into messages, and
//! `bowline::setup` transports them. The handshake is Noise XX; with a [`Code`] it is Noise XXpsk0
//! under a key that SPAKE2 has agreed on. `docs/peers.md` has the format, the reasons and the
//! threat model. [`TrustFiles`] is the only part that touches files. Nothing here has a socket, a
//! clock or a thread.

#![forbid(unsafe_code)]

mod code;
mod error;
mod files;
mod handshake;
mod key;
mod session;
mod words;

pub use code::Code;
pub use error::{PeerError, Refusal};
#[doc(hidden)]
pub use files::parse_lines;
pub use files::{Authorized, Known, TrustFiles, Verdict};
pub use handshake::{Handshake, MAX_MESSAGE, Mode, Progress};
pub use key::{Identity, PublicKey};
pub use session::{Session, TAG_BYTES};
