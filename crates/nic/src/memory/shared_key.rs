//! Keys registered on two NICs: revoking one revokes both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::types::{Access, MrKey};

/// A key to be registered on a second NIC as well, as [`Nic::register_as`](crate::Nic::register_as)
/// takes it.
#[derive(Clone, Debug)]
pub struct SharedKey {
    pub(super) key: MrKey,
    pub(super) revocation: Revocation,
}

impl SharedKey {
    /// The key itself.
    pub fn key(&self) -> MrKey {
        self.key
    }
}

/// Whether a peer's SEND with invalidate, on either NIC, has revoked remote use of a key.
///
/// Regions that no peer may revoke share nothing, and pay nothing.
#[derive(Clone, Debug)]
pub(super) struct Revocation(Option<Arc<AtomicBool>>);

impl Revocation {
    /// Of a new region.
    pub(super) fn new(access: Access) -> Revocation {
        Revocation(access.contains(Access::REMOTE_INVALIDATE).then(Arc::default))
    }

    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        self.0.as_ref().is_some_and(|revoked| revoked.load(Ordering::Acquire))
    }

    /// Revokes the key on all NICs that have it.
    pub(super) fn revoke(&self) {
        if let Some(revoked) = &self.0 {
            revoked.store(true, Ordering::Release);
        }
    }
}
