//! Sealing the queue pairs that are connected over a channel (`docs/sealed.md`).
//!
//! Both ends have a secret: from a handshake, or a key that they share. Each sends the other a
//! nonce and the cipher that its CPU prefers, and proves that it has the secret. From then on the
//! queue pairs that they connect over the channel are numbered, and sealed with keys of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use bowline_device::random_bytes;
use bowline_nic::{PacketSeal, Time};
use bowline_seal::{Role, SealConfig, SessionSecret, Suite, seal};

use super::{Channel, SetupError};
use crate::Error;

/// Prefix of messages about sealing.
const MAGIC: &[u8; 4] = b"seal";
const NONCE_LEN: usize = 32;
const HELLO_LEN: usize = MAGIC.len() + 1 + NONCE_LEN;

/// The session of a channel whose queue pairs are sealed.
pub(crate) struct Sealing {
    secret: SessionSecret,
    role: Role,
    config: SealConfig,
    /// Queue pairs connected so far. A number is never reused.
    next_qp: AtomicU64,
}

impl Sealing {
    /// Protection for the next queue pair.
    pub(crate) fn next(&self, now: Time) -> PacketSeal {
        let qp = self.next_qp.fetch_add(1, Ordering::Relaxed);
        seal(&self.secret, qp, self.role, &self.config, now)
    }
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealing({:?}, {:?})", self.role, self.config.suite)
    }
}

/// What this end has offered the peer about sealing.
pub(super) struct SealOffer {
    secret: [u8; SessionSecret::LEN],
    role: Role,
    suite: Suite,
    nonce: [u8; NONCE_LEN],
}

impl std::fmt::Debug for SealOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealOffer({:?}, {:?})", self.role, self.suite)
    }
}

impl Channel {
    /// Seals every queue pair that is connected over this channel from now on: its packets are
    /// encrypted and authenticated, and no others are accepted. Both ends call it, with the same
    /// secret; one is the initiator and the other the responder.
    ///
    /// The secret comes from a handshake, or is a key that both ends share. It may be used for many
    /// channels: each end adds a nonce.
    ///
    /// # Errors
    /// If the peer has another secret, or does not seal.
    pub fn seal(&mut self, secret: &[u8; SessionSecret::LEN], role: Role) -> Result<(), Error> {
        let offer = self.offer_seal(secret, role)?;
        let sealing = self.agree(offer)?;
        let (session, suite) = (&sealing.secret, sealing.config.suite);
        self.send(&session.proof(role, suite))?;
        if !session.proves(role.peer(), suite, &self.recv()?) {
            return Err(SetupError::WrongSecret.into());
        }
        self.set_sealing(sealing);
        Ok(())
    }

    /// Sends the peer a nonce and a cipher.
    pub(super) fn offer_seal(
        &mut self,
        secret: &[u8; SessionSecret::LEN],
        role: Role,
    ) -> Result<SealOffer, Error> {
        let nonce = random_bytes().map_err(|e| Error::system("read randomness", e))?;
        let suite = preferred_suite()?;
        self.send(&hello(suite, &nonce))?;
        Ok(SealOffer { secret: *secret, role, suite, nonce })
    }

    /// Receives the peer's nonce and cipher, and seals from then on. The channel is encrypted with
    /// keys from the same handshake as the secret: a message that opens proves as much as the
    /// proofs of [`seal`](Self::seal), which take a round trip.
    pub(super) fn accept_seal(&mut self, offer: SealOffer) -> Result<(), Error> {
        let sealing = self.agree(offer)?;
        self.set_sealing(sealing);
        Ok(())
    }

    /// Derives the session from this end's offer and the peer's.
    fn agree(&mut self, offer: SealOffer) -> Result<Sealing, Error> {
        let SealOffer { secret, role, suite, nonce } = offer;
        let (theirs, peer_nonce) = parse_hello(&self.recv()?)?;
        let session = match role {
            Role::Initiator => SessionSecret::from_pre_shared(&secret, &nonce, &peer_nonce),
            Role::Responder => SessionSecret::from_pre_shared(&secret, &peer_nonce, &nonce),
        };
        let config = SealConfig::new(Suite::agree(suite, theirs));
        Ok(Sealing { secret: session, role, config, next_qp: AtomicU64::new(0) })
    }
}

/// The cipher that this end prefers: by `BOWLINE_CIPHER`, or else the fastest on this CPU.
pub(crate) fn preferred_suite() -> Result<Suite, Error> {
    suite_named(&std::env::var("BOWLINE_CIPHER").unwrap_or_default())
}

fn suite_named(name: &str) -> Result<Suite, Error> {
    if name.is_empty() {
        return Ok(Suite::best());
    }
    Suite::from_name(name).ok_or_else(|| {
        let known = Suite::ALL.map(Suite::name).join(", ");
        let why = format!("BOWLINE_CIPHER is `{name}`: set it to one of {known}");
        Error::Invalid { what: "environment", why }
    })
}

fn hello(suite: Suite, nonce: &[u8; NONCE_LEN]) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    let (magic, rest) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    rest[0] = suite.code();
    rest[1..].copy_from_slice(nonce);
    bytes
}

fn parse_hello(bytes: &[u8]) -> Result<(Suite, [u8; NONCE_LEN]), SetupError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(SetupError::Unsealed)?;
    let (code, nonce) = rest.split_first().ok_or(SetupError::Truncated)?;
    let suite = Suite::from_code(*code).ok_or(SetupError::Invalid("cipher"))?;
    Ok((suite, nonce.try_into().map_err(|_| SetupError::Truncated)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cipher_is_chosen_by_name() {
        assert_eq!(suite_named("").unwrap(), Suite::best());
        for suite in Suite::ALL {
            assert_eq!(suite_named(suite.name()).unwrap(), suite);
        }
        let error = suite_named("rot13").unwrap_err().to_string();
        assert!(error.contains("`rot13`") && error.contains("aes-256-gcm"), "{error}");
    }
}
