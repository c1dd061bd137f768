//! Protection domains.

use std::sync::Arc;

use bowline_failover::mirror::{self, Place};
use bowline_nic::PdId;

use crate::{Device, DeviceError};

/// A protection domain of a device.
pub struct Pd {
    device: Arc<Device>,
    pub(crate) mirror: mirror::Pd,
}

impl Pd {
    /// Makes a domain.
    pub fn create(device: &Arc<Device>) -> Result<Pd, DeviceError> {
        let mirror = mirror::Pd::create(device.engines())?;
        Ok(Pd { device: Arc::clone(device), mirror })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What the engine of a lane calls it, for protocols that run there.
    pub fn id_on(&self, lane: usize) -> PdId {
        self.mirror.id(Place::lane(lane))
    }

    /// Frees the domain; fails while anything is in it.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        Ok(self.mirror.destroy(self.device.engines())?)
    }
}
