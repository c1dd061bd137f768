//! Protection domains.

use std::sync::{Arc, Mutex};

use bowline_device as device;
use bowline_nic::{Access, Buffer, QpType};

use crate::direct::Sharing;
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
    pub(crate) sharing: Mutex<Sharing>,
}

impl PdInner {
    pub(crate) fn device(&self) -> &Arc<device::Device> {
        self.core.device()
    }
}

impl Pd {
    pub(crate) fn new(device: &Arc<device::Device>) -> Result<Pd, Error> {
        let core = Arc::new(device::Pd::create(device)?);
        Ok(Pd { inner: Arc::new(PdInner { core, sharing: Mutex::default() }) })
    }

    /// Its device.
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(self.inner.device()) }
    }

    /// Allocates `len` zero bytes and registers them.
    pub fn register(&self, len: usize, access: Access) -> Result<Mr, Error> {
        self.register_buffer(Buffer::new(len), access)
    }

    /// Allocates `len` zero bytes that a program on the same host can map, and registers them.
    ///
    /// WRITEs to a region that is offered by [`Channel::connect`](crate::Channel::connect) are then
    /// copied straight into it, if the queue pair is a plain reliable connection and the peer is a
    /// process of the same user: with one copy instead of two, and without waking this program.
    /// Elsewhere, for instance over a device that only has UDP, it is like
    /// [`register`](Self::register).
    ///
    /// Whoever may write the region so has it mapped, and could also write it at any other time.
    pub fn register_shared(&self, len: usize, access: Access) -> Result<Mr, Error> {
        Mr::shared(self, len, access)
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
