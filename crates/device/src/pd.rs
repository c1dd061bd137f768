//! Protection domains.

use std::sync::Arc;

use bowline_failover::mirror::{self, Place};
use bowline_ibverbs as ibverbs;
use bowline_nic::PdId;

use crate::backend::Backend;
use crate::{Device, DeviceError};

/// A protection domain of a device.
pub struct Pd {
    device: Arc<Device>,
    pub(crate) back: Backend<mirror::Pd, Arc<ibverbs::Pd>>,
}

impl Pd {
    /// Creates a protection domain.
    pub fn create(device: &Arc<Device>) -> Result<Pd, DeviceError> {
        let back = match &device.verbs {
            None => Backend::Soft(mirror::Pd::create(device.engines())?),
            Some(verbs) => Backend::Verbs(Arc::new(ibverbs::Pd::alloc(&verbs.context)?)),
        };
        Ok(Pd { device: Arc::clone(device), back })
    }

    /// The domain's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The domain's identifier on a lane's engine, for protocols that run there.
    pub fn id_on(&self, lane: usize) -> Result<PdId, DeviceError> {
        Ok(self.back.soft("a protocol in a lane")?.id(Place::lane(lane)))
    }

    /// Frees the domain. Fails while it contains objects. On a verbs device the domain ends with
    /// its last object.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(mirror) => Ok(mirror.destroy(self.device.engines())?),
            Backend::Verbs(_) => Ok(()),
        }
    }
}
