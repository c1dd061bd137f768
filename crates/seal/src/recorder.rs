//! A record of nonces, to show that none is used twice.

use std::collections::HashSet;
use std::sync::Mutex;

/// Notified of every nonce before it is used.
pub trait NonceRecorder: Send + Sync {
    /// A packet is about to be sealed with this key and nonce. `key` is a unique identifier of the
    /// key.
    fn record(&self, key: [u8; 16], nonce: [u8; 12]);
}

/// Remembers every nonce.
#[derive(Debug, Default)]
pub struct NonceLog {
    seen: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    nonces: HashSet<([u8; 16], [u8; 12])>,
    keys: HashSet<[u8; 16]>,
    repeated: u64,
}

impl NonceLog {
    /// How many nonces were used, with how many keys, and how many of them were repeated under the
    /// same key.
    pub fn counts(&self) -> (u64, u64, u64) {
        let log = self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        (log.nonces.len() as u64, log.keys.len() as u64, log.repeated)
    }
}

impl NonceRecorder for NonceLog {
    fn record(&self, key: [u8; 16], nonce: [u8; 12]) {
        let mut log = self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        log.keys.insert(key);
        if !log.nonces.insert((key, nonce)) {
            log.repeated += 1;
        }
    }
}
