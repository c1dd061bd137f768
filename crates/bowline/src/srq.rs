//! Shared receive queues.

use std::ops::Range;
use std::sync::Arc;

use bowline_device as device;
use bowline_nic::{RecvWr, SrqId};

use crate::pd::PdInner;
use crate::{Error, Mr, Pd};

/// Receives that several queue pairs share.
#[derive(Clone)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) core: Arc<device::Srq>,
    pd: Arc<PdInner>,
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u8) -> Result<Srq, Error> {
        let core = Arc::new(device::Srq::create(&pd.inner.core, max_wr, max_sge)?);
        Ok(Srq { inner: Arc::new(SrqInner { core, pd: Arc::clone(&pd.inner) }) })
    }

    /// Its identifier, as [`Event::SrqLimit`](crate::Event::SrqLimit) names it.
    pub fn id(&self) -> SrqId {
        self.inner.core.id()
    }

    /// Posts a receive into a part of `mr`.
    pub fn recv(&self, wr_id: u64, mr: &Mr, range: Range<usize>) -> Result<(), Error> {
        if !Arc::ptr_eq(mr.pd(), &self.inner.pd) {
            return Err(Error::Foreign { what: "the memory region", of: "protection domain" });
        }
        self.post_recv(&RecvWr::new(wr_id, &[mr.sge(range)?]))
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        Ok(self.inner.core.post(wr)?)
    }

    /// Asks for one [`Event::SrqLimit`](crate::Event::SrqLimit) when fewer than `limit` are left.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.inner.core.set_limit(limit)?)
    }
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Srq({:?})", self.id())
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // The queue pairs that use it hold it, so it is unused by now.
        let _ = self.core.destroy();
    }
}
