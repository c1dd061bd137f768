//! Shared receive queues.

use std::ops::Range;
use std::sync::Arc;

use bowline_nic::{RecvWr, SrqId};
use bowline_rails::SrqMirror;

use crate::pd::PdInner;
use crate::{Error, Mr, Pd};

/// Receives that several queue pairs draw from.
#[derive(Clone)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) id: SrqId,
    pub(crate) pd: Arc<PdInner>,
    mirror: Option<Arc<SrqMirror>>,
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u8) -> Result<Srq, Error> {
        let pd = Arc::clone(&pd.inner);
        let id = pd.device.control(|nic, _| nic.create_srq(pd.id, max_wr, max_sge))?;
        let mirror = match pd.device.rails() {
            Some(rails) => Some(rails.shadow_srq(id, pd.id, max_wr, max_sge)?),
            None => None,
        };
        Ok(Srq { inner: Arc::new(SrqInner { id, pd, mirror }) })
    }

    /// Its identifier, as [`Event::SrqLimit`](crate::Event::SrqLimit) names it.
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// Posts a receive into a part of `mr`.
    pub fn recv(&self, wr_id: u64, mr: &Mr, range: Range<usize>) -> Result<(), Error> {
        if !Arc::ptr_eq(mr.pd(), &self.inner.pd) {
            return Err(Error::Foreign { what: "the memory region", of: "protection domain" });
        }
        self.post_recv(&RecvWr { wr_id, sges: &[mr.sge(range)?] })
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        let SrqInner { id, pd, mirror } = &*self.inner;
        match (mirror, pd.device.rails()) {
            (Some(mirror), Some(rails)) => {
                Ok(mirror.post(rails, |nic, srq| nic.post_srq_recv(srq, wr))??)
            }
            _ => pd.device.post(|nic, _| nic.post_srq_recv(*id, wr)),
        }
    }

    /// Asks for one [`Event::SrqLimit`](crate::Event::SrqLimit) when fewer than `limit` are left.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let SrqInner { id, pd, .. } = &*self.inner;
        pd.device.control(|nic, _| nic.set_srq_limit(*id, limit))
    }
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Srq({:?})", self.inner.id)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // The queue pairs that use it hold it, so it is unused by now.
        let _ = self.pd.device.control(|nic, _| nic.destroy_srq(self.id));
        if let Some(mirror) = &self.mirror {
            self.pd.device.forget(|rails| rails.forget_srq(mirror));
        }
    }
}
