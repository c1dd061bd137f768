//! Memory windows.

use std::sync::Arc;

use bowline_failover::mirror;
use bowline_nic::MrKey;

use crate::{DeviceError, Pd};

/// A memory window of type 2: bound and revoked by work requests
/// ([`SendOp::BindWindow`](bowline_nic::SendOp::BindWindow)).
pub struct Mw {
    pd: Arc<Pd>,
    key: MrKey,
}

impl Mw {
    /// Allocates a window, which leads nowhere until it is bound. A device with a backup has none.
    pub fn alloc(pd: &Arc<Pd>) -> Result<Mw, DeviceError> {
        let key = mirror::alloc_window(pd.device().engines(), &pd.mirror)?;
        Ok(Mw { pd: Arc::clone(pd), key })
    }

    /// Its key, with a last byte of zero.
    pub fn key(&self) -> MrKey {
        self.key
    }

    /// Its domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Frees it. If it is bound its key is revoked.
    pub fn dealloc(&self) -> Result<(), DeviceError> {
        Ok(mirror::dealloc_window(self.pd.device().engines(), &self.pd.mirror, self.key)?)
    }
}
