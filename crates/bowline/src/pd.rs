//! Protection domains.

use std::sync::Arc;

use bowline_device as device;
use bowline_nic::{Access, Buffer, QpType};

use crate::{Cq, Device, Error, Mr, Mw, QpBuilder, Srq};

/// A protection domain: queue pairs can only access the memory of their own domain.
///
/// It lives as long as anything created from it, in whatever order handles are dropped.
#[derive(Clone)]
pub struct Pd {
    pub(crate) inner: Arc<PdInner>,
}

pub(crate) struct PdInner {
    pub(crate) core: Arc<device::Pd>,
}

impl PdInner {
    pub(crate) fn device(&self) -> &Arc<device::Device> {
        self.core.device()
    }
}

impl Pd {
    pub(crate) fn new(device: &Arc<device::Device>) -> Result<Pd, Error> {
        let core = Arc::new(device::Pd::create(device)?);
        Ok(Pd { inner: Arc::new(PdInner { core }) })
    }

    /// Its device.
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(self.inner.device()) }
    }

    /// Allocates `len` zero bytes and registers them.
    pub fn register(&self, len: usize, access: Access) -> Result<Mr, Error> {
        self.register_buffer(Buffer::new(len), access)
    }

    /// Registers existing memory, possibly not for the first time.
    pub fn register_buffer(&self, buffer: Arc<Buffer>, access: Access) -> Result<Mr, Error> {
        Mr::new(self, buffer, access)
    }

    /// Allocates a memory window, to be bound to parts of regions. A device with a backup has none.
    pub fn alloc_window(&self) -> Result<Mw, Error> {
        Mw::new(self)
    }

    /// Creates a queue for up to `max_wr` receives that several queue pairs share.
    pub fn create_srq(&self, max_wr: u32, max_sge: u8) -> Result<Srq, Error> {
        Srq::new(self, max_wr, max_sge)
    }

    /// A builder for a queue pair whose sends and receives complete on `cq`.
    pub fn qp(&self, qp_type: QpType, cq: &Cq) -> QpBuilder {
        QpBuilder::new(self, qp_type, cq)
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pd(of {})", self.inner.device().addr())
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Everything created from the domain holds it, so it is unused by now.
        let _ = self.core.destroy();
    }
}
