//! Memory windows.

use std::sync::{Arc, Mutex, PoisonError};

use bowline_failover::mirror;
use bowline_ibverbs as ibverbs;
use bowline_nic::MrKey;

use crate::backend::Backend;
use crate::{DeviceError, Pd};

/// A memory window, which work requests bind
/// ([`SendOp::BindWindow`](bowline_nic::SendOp::BindWindow)).
pub struct Mw {
    pd: Arc<Pd>,
    key: MrKey,
    /// The provider's window, until it is freed; the soft NIC knows a window by its key.
    back: Backend<(), Mutex<Option<ibverbs::Mw>>>,
}

impl Mw {
    /// Allocates a window, which is unusable until it is bound. A device with a backup supports
    /// none.
    pub fn alloc(pd: &Arc<Pd>) -> Result<Mw, DeviceError> {
        let (key, back) = match &pd.back {
            Backend::Soft(domain) => {
                (mirror::alloc_window(pd.device().engines(), domain)?, Backend::Soft(()))
            }
            Backend::Verbs(domain) => {
                let mw = ibverbs::Mw::alloc(domain)?;
                (MrKey(mw.key()), Backend::Verbs(Mutex::new(Some(mw))))
            }
        };
        Ok(Mw { pd: Arc::clone(pd), key, back })
    }

    /// The window's key, with a last byte of zero.
    pub fn key(&self) -> MrKey {
        self.key
    }

    /// The window's protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Frees the window. If it is bound, its key is revoked.
    pub fn dealloc(&self) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(()) => {
                let domain = self.pd.back.soft("a window of the soft NIC")?;
                Ok(mirror::dealloc_window(self.pd.device().engines(), domain, self.key)?)
            }
            Backend::Verbs(mw) => {
                drop(mw.lock().unwrap_or_else(PoisonError::into_inner).take());
                Ok(())
            }
        }
    }
}
