//! The secret that two ends share, and their roles.

use core::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroizing;

use crate::schedule::expand;
use crate::suite::Suite;

/// Which end of a session this is. Each direction has its own keys, so that a packet reflected to
/// its sender does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that connected.
    Initiator,
    /// The end that was connected to.
    Responder,
}

impl Role {
    /// The role of the other end.
    pub fn peer(self) -> Role {
        match self {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Role::Initiator => 0,
            Role::Responder => 1,
        }
    }
}

/// The secret of a session, known only to its two ends. Fresh for every session: keys derived from
/// it count their packets from 0, so a second session with the same secret would repeat nonces.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret(Zeroizing<[u8; SessionSecret::LEN]>);

impl SessionSecret {
    /// Bytes of a secret.
    pub const LEN: usize = 32;

    /// The secret from a handshake, for instance the output of Noise's `Split` or of TLS's
    /// exporter.
    pub fn from_bytes(bytes: [u8; SessionSecret::LEN]) -> SessionSecret {
        SessionSecret(Zeroizing::new(bytes))
    }

    /// The secret of a session between ends that share a key from elsewhere. Each contributes a
    /// nonce drawn for this session alone.
    pub fn from_pre_shared(
        key: &[u8; SessionSecret::LEN],
        initiator_nonce: &[u8; 32],
        responder_nonce: &[u8; 32],
    ) -> SessionSecret {
        let mut context = [0; 64];
        context[..32].copy_from_slice(initiator_nonce);
        context[32..].copy_from_slice(responder_nonce);
        SessionSecret(Zeroizing::new(expand(key, "pre-shared", &context)))
    }

    /// Proves to the other end that this one has the secret and agreed on the same suite.
    pub fn proof(&self, role: Role, suite: Suite) -> [u8; 16] {
        expand(&self.0, "proof", &[role.code(), suite.code()])
    }

    /// Whether this is the proof of the end with this role, in constant time.
    pub fn proves(&self, role: Role, suite: Suite, proof: &[u8]) -> bool {
        verify_slices_are_equal(&self.proof(role, suite), proof).is_ok()
    }

    pub(crate) fn as_bytes(&self) -> &[u8; SessionSecret::LEN] {
        &self.0
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(..)")
    }
}
