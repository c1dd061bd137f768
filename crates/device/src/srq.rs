//! Shared receive queues.

use std::sync::{Arc, PoisonError};

use bowline_failover::mirror::{self, Place};
use bowline_ibverbs as ibverbs;
use bowline_nic::{ControlError, PostError, RecvWr, SrqId};

use crate::backend::Backend;
use crate::{Cq, DeviceError, Pd, Xrcd};

/// The name of the operation in the error on a verbs device.
const XRC: &str = "an extended reliable connection";

/// A queue of receives that queue pairs on any lane share.
pub struct Srq {
    pd: Arc<Pd>,
    pub(crate) back: Backend<mirror::Srq, Arc<ibverbs::Srq>>,
    xrc: Option<Extended>,
}

/// The additional state of a queue that peers of extended reliable connections name.
struct Extended {
    number: u32,
    cq: Arc<Cq>,
    xrcd: Arc<Xrcd>,
}

impl Srq {
    /// Creates a queue for `max_wr` receives.
    pub fn create(pd: &Arc<Pd>, max_wr: u32, max_sge: u8) -> Result<Srq, DeviceError> {
        let device = pd.device();
        let back = match &pd.back {
            Backend::Soft(domain) => {
                let mirror = mirror::Srq::create(device.engines(), domain, max_wr, max_sge)?;
                device.names().write().unwrap_or_else(PoisonError::into_inner).add_srq(&mirror);
                Backend::Soft(mirror)
            }
            Backend::Verbs(domain) => {
                Backend::Verbs(Arc::new(ibverbs::Srq::create(domain, max_wr, max_sge)?))
            }
        };
        Ok(Srq { pd: Arc::clone(pd), back, xrc: None })
    }

    /// Creates a queue that peers of extended reliable connections name by its
    /// [number](Srq::number). Its receives complete on `cq`.
    pub fn create_extended(
        pd: &Arc<Pd>,
        max_wr: u32,
        max_sge: u8,
        cq: &Arc<Cq>,
        xrcd: &Arc<Xrcd>,
    ) -> Result<Srq, DeviceError> {
        let device = pd.device();
        let foreign = |other| !Arc::ptr_eq(device, other);
        if foreign(cq.device()) || foreign(xrcd.device()) {
            return Err(DeviceError::Foreign { what: "the completion queue or the XRC domain" });
        }
        let number = device.next_xrc_number();
        let extended =
            mirror::Extended { domain: xrcd.id(), number, cq: &cq.back.soft(XRC)?.mirror };
        let domain = pd.back.soft(XRC)?;
        xrcd.hold();
        let made =
            mirror::Srq::create_extended(device.engines(), domain, max_wr, max_sge, extended);
        let mirror = made.inspect_err(|_| xrcd.release())?;
        device.names().write().unwrap_or_else(PoisonError::into_inner).add_srq(&mirror);
        let (cq, xrcd) = (Arc::clone(cq), Arc::clone(xrcd));
        let back = Backend::Soft(mirror);
        Ok(Srq { pd: Arc::clone(pd), back, xrc: Some(Extended { number, cq, xrcd }) })
    }

    /// The number by which peers name it, if they do.
    pub fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// The queue's protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The queue's identifier, as in [`Event::SrqLimit`](bowline_nic::Event::SrqLimit).
    pub fn id(&self) -> SrqId {
        match &self.back {
            Backend::Soft(mirror) => mirror.id(Place::lane(0)),
            Backend::Verbs(srq) => srq.id(),
        }
    }

    /// Posts a receive. This calls no lane.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        match &self.back {
            Backend::Soft(mirror) => mirror.post(wr),
            Backend::Verbs(srq) => srq.post(wr),
        }
    }

    /// Requests one event when fewer than `limit` receives are left; 0 for none.
    pub fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(mirror) => Ok(mirror.set_limit(limit)?),
            Backend::Verbs(srq) => Ok(srq.set_limit(limit)?),
        }
    }

    /// Changes the capacity, up to the device's limit. The waiting receives stay, so they must fit.
    pub fn resize(&self, max_wr: u32) -> Result<(), DeviceError> {
        let max = self.pd.device().config().max_wr;
        if max_wr > max {
            let (asked, max) = (max_wr.into(), max.into());
            return Err(ControlError::TooLarge { what: "max_wr", asked, max }.into());
        }
        Ok(self.back.soft("resizing a shared receive queue")?.resize(max_wr)?)
    }

    /// The queue's capacity, in receives.
    pub fn max_wr(&self) -> u32 {
        match &self.back {
            Backend::Soft(mirror) => mirror.max_wr(),
            Backend::Verbs(srq) => srq.max_wr(),
        }
    }

    /// Destroys the queue. Fails while a queue pair uses it. On a verbs device the queue ends when
    /// it is dropped.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        let Backend::Soft(mirror) = &self.back else { return Ok(()) };
        let device = self.pd.device();
        let domain = self.pd.back.soft("a queue of the soft NIC")?;
        match &self.xrc {
            None => mirror.destroy(device.engines(), domain)?,
            Some(Extended { cq, xrcd, .. }) => {
                let cq = &cq.back.soft(XRC)?.mirror;
                mirror.destroy_extended(device.engines(), domain, cq)?;
                xrcd.release();
            }
        }
        device.names().write().unwrap_or_else(PoisonError::into_inner).remove_srq(mirror);
        Ok(())
    }
}
