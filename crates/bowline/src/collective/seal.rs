//! Sealing the connections between the ranks of a group (`docs/sealed.md`).
//!
//! Ranks that have authenticated each other share a secret drawn for the group alone. Each pair
//! derives a session from it and from their ranks, in which their queue pairs are numbered.

use bowline_collective::Rank;
use bowline_device::random_bytes;
use bowline_nic::{PacketSeal, Time};
use bowline_seal::{Role, SealConfig, SessionSecret, Suite, seal};

use crate::Error;

/// Seals the packets of a group: a secret that its ranks share, and their cipher.
#[derive(Clone)]
pub struct GroupSeal {
    secret: [u8; SessionSecret::LEN],
    suite: Suite,
}

impl GroupSeal {
    pub(super) const LEN: usize = SessionSecret::LEN + 1;

    /// A new secret.
    pub(super) fn new(suite: Suite) -> Result<GroupSeal, Error> {
        let secret = random_bytes().map_err(|e| Error::system("read randomness", e))?;
        Ok(GroupSeal { secret, suite })
    }

    pub(super) fn to_bytes(&self) -> [u8; GroupSeal::LEN] {
        let mut bytes = [0; GroupSeal::LEN];
        bytes[0] = self.suite.code();
        bytes[1..].copy_from_slice(&self.secret);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<GroupSeal> {
        let (code, secret) = bytes.split_first()?;
        Some(GroupSeal { secret: secret.try_into().ok()?, suite: Suite::from_code(*code)? })
    }

    /// The cipher, for a group of this one's ranks with a secret of its own.
    pub(super) fn cipher(&self) -> Suite {
        self.suite
    }

    /// Seals the queue pairs between two ranks, in order. Both ends must have the same number.
    pub(super) fn between(
        &self,
        own: Rank,
        peer: Rank,
        now: Time,
    ) -> impl FnMut() -> PacketSeal + use<> {
        let nonce = |rank: Rank| {
            let mut nonce = [0; 32];
            nonce[..4].copy_from_slice(&rank.to_be_bytes());
            nonce
        };
        let (low, high) = (nonce(own.min(peer)), nonce(own.max(peer)));
        let session = SessionSecret::from_pre_shared(&self.secret, &low, &high);
        let role = if own < peer { Role::Initiator } else { Role::Responder };
        let config = SealConfig::new(self.suite);
        let mut number = 0;
        move || {
            let sealed = seal(&session, number, role, &config, now);
            number += 1;
            sealed
        }
    }
}

impl std::fmt::Debug for GroupSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GroupSeal({:?})", self.suite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_the_trip_and_is_not_shown() {
        let seal = GroupSeal::new(Suite::best()).unwrap();
        let bytes = seal.to_bytes();
        let same = GroupSeal::from_bytes(&bytes).unwrap();
        assert_eq!((same.secret, same.suite), (seal.secret, seal.suite));
        for cut in 0..bytes.len() {
            assert!(GroupSeal::from_bytes(&bytes[..cut]).is_none());
        }
        assert!(format!("{seal:?}").len() < 40, "{seal:?}");
    }
}
