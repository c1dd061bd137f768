//! Keys of a storm's connections, and the record of their nonces.

use std::sync::Arc;

use bowline_nic::{PacketSeal, Time};
use bowline_seal::{NonceLog, Role, Rollover, SealConfig, SessionSecret, Suite, seal};

use crate::rng::SimRng;

/// Stream from which the session's secret is drawn.
const STREAM: u64 = 0x5ea1;

/// The session of a storm.
pub(crate) struct Seals {
    secret: SessionSecret,
    config: SealConfig,
    log: Arc<NonceLog>,
}

impl Seals {
    pub(crate) fn new(seed: u64, rollover: Rollover) -> Seals {
        let rng = &mut SimRng::new(seed, STREAM);
        let mut secret = [0; SessionSecret::LEN];
        for chunk in secret.as_chunks_mut::<8>().0 {
            *chunk = rng.bits().to_le_bytes();
        }
        let log = Arc::new(NonceLog::default());
        let recorder = Some(Arc::clone(&log) as Arc<_>);
        let suite = rng.pick(&Suite::ALL);
        Seals {
            secret: SessionSecret::from_bytes(secret),
            config: SealConfig { suite, rollover, recorder },
            log,
        }
    }

    /// Protection for an end of a connection that was re-established `epoch` times. Ends 2n and
    /// 2n + 1 are each other's peers.
    pub(crate) fn end(&self, end: usize, epoch: u32, now: Time) -> PacketSeal {
        let role = if end.is_multiple_of(2) { Role::Initiator } else { Role::Responder };
        let number = (end as u64 / 2) << 32 | u64::from(epoch);
        seal(&self.secret, number, role, &self.config, now)
    }

    /// The same for an end of the `index`-th queue pair between two hosts.
    pub(crate) fn between(&self, index: usize, host: usize, now: Time) -> PacketSeal {
        self.end(2 * index + host, 0, now)
    }

    /// Nonces recorded, and keys that they were used with.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (nonces, keys, _) = self.log.counts();
        (nonces, keys)
    }

    /// Whether each nonce was used once.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.log.counts() {
            (_, _, 0) => Ok(()),
            (_, _, repeated) => Err(format!("{repeated} nonces were used twice with a key")),
        }
    }
}
