//! Domains of extended reliable connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_nic::{ControlError, XrcdId};

use crate::{Cq, Device, DeviceError, Pd};

/// A domain of extended reliable connections: queue pairs of it take messages for the shared
/// receive queues of it.
pub struct Xrcd {
    id: XrcdId,
    /// Queue pairs that only receive have neither domain nor completion queue of their own: these
    /// stand there.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    users: AtomicUsize,
}

impl Xrcd {
    /// Makes a domain.
    pub fn create(device: &Arc<Device>) -> Result<Xrcd, DeviceError> {
        device.needs_soft_nic("an extended reliable connection")?;
        let pd = Arc::new(Pd::create(device)?);
        let made = Cq::create(device, 1, None);
        let cq = Arc::new(made.inspect_err(|_| _ = pd.destroy())?);
        let id = XrcdId(device.next_xrc_number());
        Ok(Xrcd { id, pd, cq, users: AtomicUsize::new(0) })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// What engines call it.
    pub fn id(&self) -> XrcdId {
        self.id
    }

    /// A protection domain that holds nothing, for queue pairs that only receive.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// A completion queue that nothing completes at, for queue pairs that only receive.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Frees the domain; fails while a queue or a queue pair is in it.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        if self.users.load(Ordering::Acquire) > 0 {
            return Err(ControlError::Busy { what: "the XRC domain" }.into());
        }
        self.cq.destroy()?;
        self.pd.destroy()
    }
}
