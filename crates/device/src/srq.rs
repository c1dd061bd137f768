//! Shared receive queues.

use std::sync::{Arc, PoisonError};

use bowline_failover::mirror::{self, Place};
use bowline_nic::{ControlError, PostError, RecvWr, SrqId};

use crate::{DeviceError, Pd};

/// Receives that queue pairs of any lane draw from.
pub struct Srq {
    pd: Arc<Pd>,
    pub(crate) mirror: mirror::Srq,
}

impl Srq {
    /// Makes a queue for `max_wr` receives.
    pub fn create(pd: &Arc<Pd>, max_wr: u32, max_sge: u8) -> Result<Srq, DeviceError> {
        let device = pd.device();
        let mirror = mirror::Srq::create(device.engines(), &pd.mirror, max_wr, max_sge)?;
        device.names().write().unwrap_or_else(PoisonError::into_inner).add_srq(&mirror);
        Ok(Srq { pd: Arc::clone(pd), mirror })
    }

    /// Its domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its identifier, as [`Event::SrqLimit`](bowline_nic::Event::SrqLimit) names it.
    pub fn id(&self) -> SrqId {
        self.mirror.id(Place::lane(0))
    }

    /// Posts a receive. No lane is called for it.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.mirror.post(wr)
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 for none.
    pub fn set_limit(&self, limit: u32) -> Result<(), ControlError> {
        self.mirror.set_limit(limit)
    }

    /// Destroys the queue; fails while a queue pair uses it.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        let device = self.pd.device();
        self.mirror.destroy(device.engines(), &self.pd.mirror)?;
        device.names().write().unwrap_or_else(PoisonError::into_inner).remove_srq(&self.mirror);
        Ok(())
    }
}
