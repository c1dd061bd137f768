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
    /// Makes a domain.
    pub fn create(device: &Arc<Device>) -> Result<Pd, DeviceError> {
        let back = match &device.verbs {
            None => Backend::Soft(mirror::Pd::create(device.engines())?),
            Some(verbs) => Backend::Verbs(Arc::new(ibverbs::Pd::alloc(&verbs.context)?)),
        };
        Ok(Pd { device: Arc::clone(device), back })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What the engine of a lane calls it, for protocols that run there.
    pub fn id_on(&self, lane: usize) -> Result<PdId, DeviceError> {
        Ok(self.back.soft("a protocol in a lane")?.id(Place::lane(lane)))
    }

    /// Frees the domain; fails while anything is in it. That of a verbs device ends with the last
    /// object in it.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(mirror) => Ok(mirror.destroy(self.device.engines())?),
            Backend::Verbs(_) => Ok(()),
        }
    }
}
