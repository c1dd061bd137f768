//! Domains of extended reliable connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_nic::{ControlError, XrcdId};

use crate::{Cq, Device, DeviceError, Pd};

/// A domain of extended reliable connections: its queue pairs receive messages for its shared
/// receive queues.
pub struct Xrcd {
    id: XrcdId,
    /// Queue pairs that only receive have no protection domain and completion queue of their own,
    /// and use these instead.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    users: AtomicUsize,
}

impl Xrcd {
    /// Creates a domain.
    pub fn create(device: &Arc<Device>) -> Result<Xrcd, DeviceError> {
        device.needs_soft_nic("an extended reliable connection")?;
        let pd = Arc::new(Pd::create(device)?);
        let made = Cq::create(device, 1, None);
        let cq = Arc::new(made.inspect_err(|_| _ = pd.destroy())?);
        let id = XrcdId(device.next_xrc_number());
        Ok(Xrcd { id, pd, cq, users: AtomicUsize::new(0) })
    }

    /// The domain's device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// The domain's identifier on the engines.
    pub fn id(&self) -> XrcdId {
        self.id
    }

    /// An empty protection domain, for queue pairs that only receive.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// A completion queue without completions, for queue pairs that only receive.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Frees the domain. Fails while it contains a queue or a queue pair.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        if self.users.load(Ordering::Acquire) > 0 {
            return Err(ControlError::Busy { what: "the XRC domain" }.into());
        }
        self.cq.destroy()?;
        self.pd.destroy()
    }
}
