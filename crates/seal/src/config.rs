//! How a connection is protected.

use std::sync::Arc;

use crate::recorder::NonceRecorder;
use crate::suite::Suite;

/// When a sender takes the next key, and how long a receiver keeps the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollover {
    /// Packets that one key seals, at most.
    pub packets: u64,
    /// Bytes that one key seals; a packet may exceed them.
    pub bytes: u64,
    /// How long one key is used.
    pub age_ns: u64,
    /// How long the key before is kept for packets that were overtaken.
    pub keep_ns: u64,
}

impl Default for Rollover {
    /// 2²² packets, 16 GiB or an hour, whichever comes first: below AES-GCM's limits (RFC 9001,
    /// section 6.6). Overtaken packets are taken for a second.
    fn default() -> Rollover {
        Rollover {
            packets: 1 << 22,
            bytes: 16 << 30,
            age_ns: 3_600_000_000_000,
            keep_ns: 1_000_000_000,
        }
    }
}

/// How a connection is protected. Both ends must have the same suite.
#[derive(Clone)]
pub struct SealConfig {
    /// The cipher.
    pub suite: Suite,
    /// When keys change.
    pub rollover: Rollover,
    /// Hears of every nonce, for tests.
    pub recorder: Option<Arc<dyn NonceRecorder>>,
}

impl SealConfig {
    /// With this cipher, and keys that roll over as they should.
    pub fn new(suite: Suite) -> SealConfig {
        SealConfig { suite, rollover: Rollover::default(), recorder: None }
    }
}
