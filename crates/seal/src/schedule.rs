//! Derives the key of an epoch from a session's secret.
//!
//! ```text
//! direction = HKDF-Expand(session, "direction" ‖ sender's role ‖ suite ‖ queue pair)
//! key, iv   = HKDF-Expand(secret of the epoch, "key"), HKDF-Expand(…, "iv")
//! next      = HKDF-Expand(secret of the epoch, "next")
//! ```
//! A secret is erased when the next one is derived, so that a leaked key opens no earlier epoch.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use zeroize::Zeroizing;

use crate::secret::{Role, SessionSecret};
use crate::suite::{NONCE_LEN, PacketKey, Suite};

/// Prefix of every label, so that a secret that is also used elsewhere yields other keys there.
const PROTOCOL: &[u8] = b"bowline sealed 1";

/// Length of the derived output.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand with SHA-256 (RFC 5869). Label and context are length-prefixed, so that no two pairs
/// encode alike.
pub(crate) fn expand<const N: usize>(secret: &[u8; 32], label: &str, context: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let lengths = [label.len() as u8, context.len() as u8];
    let info = [PROTOCOL, &lengths, label.as_bytes(), context];
    Prk::new_less_safe(HKDF_SHA256, secret)
        .expand(&info, Len(N))
        .and_then(|okm| okm.fill(&mut out))
        .expect("HKDF-SHA256 gives up to 8160 bytes");
    out
}

/// Derives the keys of one direction of a queue pair, epoch by epoch.
pub(crate) struct Schedule {
    suite: Suite,
    /// Secret of the epoch whose key comes next.
    secret: Zeroizing<[u8; 32]>,
    next_epoch: u64,
}

impl Schedule {
    /// The direction in which `sender` sends.
    pub(crate) fn new(session: &SessionSecret, qp: u64, sender: Role, suite: Suite) -> Schedule {
        let mut context = [0; 10];
        context[0] = sender.code();
        context[1] = suite.code();
        context[2..].copy_from_slice(&qp.to_be_bytes());
        let secret = expand(session.as_bytes(), "direction", &context);
        Schedule { suite, secret: Zeroizing::new(secret), next_epoch: 0 }
    }

    /// The key of the next epoch.
    pub(crate) fn advance(&mut self) -> PacketKey {
        let key = Zeroizing::new(expand::<32>(&self.secret, "key", &[]));
        let iv = expand::<NONCE_LEN>(&self.secret, "iv", &[]);
        self.secret = Zeroizing::new(expand(&self.secret, "next", &[]));
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        PacketKey::new(self.suite, &key, iv, epoch)
    }
}
