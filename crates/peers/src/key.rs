//! Identities: X25519 key pairs, and their text form.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::PeerError;
use crate::handshake::XX;

const PUBLIC: &str = "bowline1:";
const SECRET: &str = "bowline-secret1:";
/// Letters and digits that are not easily confused.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// Groups of five characters in a fingerprint: 125 bits.
const GROUPS: usize = 5;

/// A peer's public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> PublicKey {
        PublicKey(bytes)
    }

    /// From the handshake's bytes.
    pub(crate) fn from_slice(bytes: &[u8]) -> Option<PublicKey> {
        bytes.try_into().ok().map(PublicKey)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A hash of it for users to compare, as `k3mpw-…`.
    pub fn fingerprint(&self) -> String {
        let hash = blake3::derive_key("bowline 2026 fingerprint of a public key", &self.0);
        let mut out = String::with_capacity(GROUPS * 6);
        let (mut bits, mut held) = (0_u32, 0);
        let mut bytes = hash.into_iter();
        for at in 0..GROUPS * 5 {
            if held < 5 {
                bits = bits << 8 | u32::from(bytes.next().unwrap_or_default());
                held += 8;
            }
            held -= 5;
            if at > 0 && at % 5 == 0 {
                out.push('-');
            }
            out.push(LETTERS[(bits >> held) as usize & 31].into());
        }
        out
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

impl FromStr for PublicKey {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<PublicKey, PeerError> {
        let bytes = text.strip_prefix(PUBLIC).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        bytes
            .and_then(|bytes| PublicKey::from_slice(&bytes))
            .ok_or_else(|| PeerError::NotAKey { text: text.chars().take(80).collect() })
    }
}

/// This end's key pair.
#[derive(Clone)]
pub struct Identity {
    secret: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl Identity {
    /// A new one.
    pub fn generate() -> Result<Identity, PeerError> {
        let builder = snow::Builder::new(XX.parse().map_err(|_| PeerError::Random)?);
        let pair = builder.generate_keypair().map_err(|_| PeerError::Random)?;
        let private = Zeroizing::new(pair.private);
        let secret = <[u8; 32]>::try_from(&private[..]).map_err(|_| PeerError::Random)?;
        let public = PublicKey::from_slice(&pair.public).ok_or(PeerError::Random)?;
        Ok(Identity { secret: Zeroizing::new(secret), public })
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// The contents of the key file: the secret half and, to avoid computing it, the public one.
    pub(crate) fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(*self.secret));
        Zeroizing::new(format!("{SECRET}{}\n{}\n", *secret, self.public))
    }

    /// Reads what [`to_text`](Self::to_text) wrote.
    pub(crate) fn from_text(text: &str) -> Option<Identity> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let secret = lines.next()?.strip_prefix(SECRET)?;
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.decode(secret).ok()?);
        let secret = Zeroizing::new(<[u8; 32]>::try_from(&secret[..]).ok()?);
        let public = lines.next()?.parse().ok()?;
        Some(Identity { secret, public })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_trip_as_text() {
        let identity = Identity::generate().unwrap();
        let read = Identity::from_text(&identity.to_text()).unwrap();
        assert_eq!(read.public(), identity.public());
        assert_eq!(read.secret(), identity.secret());
        let public = identity.public();
        assert_eq!(public.to_string().parse::<PublicKey>().unwrap(), public);
        for wrong in ["", "bowline1:", "bowline1:AAAA", "ssh-ed25519 AAAA", &"x".repeat(500)] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fingerprint_is_short_and_follows_every_bit() {
        let key = PublicKey::from_bytes([7; 32]);
        let shown = key.fingerprint();
        assert_eq!(shown.len(), 29);
        assert!(shown.split('-').all(|group| group.len() == 5), "{shown}");
        for bit in 0..256 {
            let mut bytes = [7; 32];
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(PublicKey::from_bytes(bytes).fingerprint(), shown);
        }
    }

    #[test]
    fn nobody_sees_a_secret_by_accident() {
        let identity = Identity::generate().unwrap();
        let secret = URL_SAFE_NO_PAD.encode(identity.secret());
        assert!(!format!("{identity:?}").contains(&secret));
    }
}
