//! Memory regions.

use std::sync::Arc;

use bowline_failover::mirror;
use bowline_nic::{Access, Buffer, MrKey, Region};

use crate::{DeviceError, Pd};

/// Registered memory: every lane and the backup know it under one key.
pub struct Mr {
    pd: Arc<Pd>,
    key: MrKey,
}

impl Mr {
    /// Registers memory of Bowline's own, which lives as long as anybody needs it.
    pub fn register(pd: &Arc<Pd>, buffer: &Arc<Buffer>, access: Access) -> Result<Mr, DeviceError> {
        let region = || Some(Region::owned(Arc::clone(buffer)));
        Mr::new(pd, region, buffer.addr(), access)
    }

    /// Registers memory that somebody else owns: an array of NumPy's, a C program's buffer. Its first byte
    /// gets the address `iova`.
    ///
    /// From here on peers that know the key, and work requests that name it, read the memory and,
    /// if `access` says so, write it, at any time and from any thread.
    ///
    /// # Safety
    /// Until [`Mr::deregister`] has returned, or [`Device::shut_down`](crate::Device::shut_down) of its
    /// device has:
    ///
    /// * `addr..addr + len` stays mapped, readable and, with [`Access::LOCAL_WRITE`], writable;
    /// * nobody holds a Rust reference to it, except while no peer and no work request can touch it.
    ///
    /// After that nothing touches the memory any more: every lane sends or copies what it has read of
    /// it before it lets go of its engine, and deregistering takes each engine in turn.
    #[allow(unsafe_code)]
    pub unsafe fn register_foreign(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        let region = || {
            // SAFETY: the caller keeps the memory as `Region::from_raw` asks for, until it is
            // deregistered.
            unsafe { Region::from_raw(addr, len) }
        };
        Mr::new(pd, region, iova, access)
    }

    fn new(
        pd: &Arc<Pd>,
        region: impl Fn() -> Option<Region>,
        iova: u64,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        let key = mirror::register(pd.device().engines(), &pd.mirror, region, iova, access)?;
        Ok(Mr { pd: Arc::clone(pd), key })
    }

    /// Its key: locally the lkey, and to peers the rkey.
    pub fn key(&self) -> MrKey {
        self.key
    }

    /// Its domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Changes what may be done with the memory; the key stays. Memory of somebody else must allow it, as
    /// [`Mr::register_foreign`] says.
    pub fn set_access(&self, access: Access) -> Result<(), DeviceError> {
        Ok(mirror::set_access(self.pd.device().engines(), self.key, access)?)
    }

    /// Ends the registration. What still names the key fails.
    pub fn deregister(&self) -> Result<(), DeviceError> {
        Ok(mirror::deregister(self.pd.device().engines(), &self.pd.mirror, self.key)?)
    }
}
