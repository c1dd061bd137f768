//! How a connection is protected.

use std::sync::Arc;

use crate::recorder::NonceRecorder;
use crate::suite::Suite;

/// When a sender switches to the next key, and how long a receiver keeps the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollover {
    /// Most packets that one key seals.
    pub packets: u64,
    /// Bytes that one key seals; a packet may exceed them.
    pub bytes: u64,
    /// How long one key is used.
    pub age_ns: u64,
    /// How long the previous key is kept for packets that were overtaken.
    pub keep_ns: u64,
}

impl Default for Rollover {
    /// 2²² packets, 16 GiB or an hour, whichever comes first: below AES-GCM's limits (RFC 9001,
    /// section 6.6). Overtaken packets are accepted for a second.
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
    /// Notified of every nonce, for tests.
    pub recorder: Option<Arc<dyn NonceRecorder>>,
}

impl SealConfig {
    /// With this cipher, and the default key rollover.
    pub fn new(suite: Suite) -> SealConfig {
        SealConfig { suite, rollover: Rollover::default(), recorder: None }
    }
}
