//! The result of a handshake: keys for both directions, and the peer's identity.

use std::fmt;

use snow::StatelessTransportState;
use zeroize::Zeroizing;

use crate::{PeerError, PublicKey};

/// Bytes by which a sealed message is longer than its contents.
pub const TAG_BYTES: usize = 16;

/// Keys of a connection whose ends have authenticated each other.
///
/// It has no counters: the caller numbers the messages of each direction from 0, uses each number
/// once, and opens them in that order.
pub struct Session {
    transport: StatelessTransportState,
    secret: Zeroizing<[u8; 32]>,
    peer: PublicKey,
}

impl Session {
    /// Completes a handshake.
    pub(crate) fn new(mut handshake: snow::HandshakeState) -> Result<Session, PeerError> {
        const INVALID: PeerError = PeerError::Invalid { what: "handshake" };
        let peer = handshake.get_remote_static().and_then(PublicKey::from_slice).ok_or(INVALID)?;
        // Derived, so that knowing it reveals nothing about the keys of these messages.
        let (ours, theirs) = handshake.dangerously_get_raw_split();
        let mut material = Zeroizing::new(Vec::with_capacity(96));
        material.extend_from_slice(&ours);
        material.extend_from_slice(&theirs);
        material.extend_from_slice(handshake.get_handshake_hash());
        let context = "bowline 2026 secret of sealed queue pairs from the setup handshake";
        let secret = Zeroizing::new(blake3::derive_key(context, &material));
        let transport = handshake.into_stateless_transport_mode().map_err(|_| INVALID)?;
        Ok(Session { transport, secret, peer })
    }

    /// The key that the other end has proven to hold.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// A secret known only to both ends, bound to this handshake: for the keys of sealed queue
    /// pairs.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Whether this end connected.
    pub fn is_initiator(&self) -> bool {
        self.transport.is_initiator()
    }

    /// Encrypts message `number` of this end.
    pub fn seal(&self, number: u64, message: &[u8]) -> Result<Vec<u8>, PeerError> {
        let mut out = vec![0; message.len() + TAG_BYTES];
        let len = self.transport.write_message(number, message, &mut out);
        out.truncate(len.map_err(|_| PeerError::Invalid { what: "message" })?);
        Ok(out)
    }

    /// Decrypts message `number` of the peer.
    pub fn open(&self, number: u64, sealed: &[u8]) -> Result<Vec<u8>, PeerError> {
        let mut out = vec![0; sealed.len()];
        let len = self.transport.read_message(number, sealed, &mut out);
        out.truncate(len.map_err(|_| PeerError::Changed)?);
        Ok(out)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(with {})", self.peer.fingerprint())
    }
}
