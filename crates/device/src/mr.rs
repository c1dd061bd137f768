//! Memory regions.

use std::sync::Arc;

use bowline_failover::mirror;
use bowline_ibverbs as ibverbs;
use bowline_nic::{Access, Buffer, MrKey, Region};

use crate::backend::Backend;
use crate::{DeviceError, Pd};

/// Registered memory. Every lane and the backup know it by one key.
pub struct Mr {
    pd: Arc<Pd>,
    back: Backend<MrKey, ibverbs::Mr>,
}

impl Mr {
    /// Registers memory that Bowline owns, which lives as long as anything needs it.
    pub fn register(pd: &Arc<Pd>, buffer: &Arc<Buffer>, access: Access) -> Result<Mr, DeviceError> {
        match &pd.back {
            Backend::Soft(domain) => {
                let region = || Some(Region::owned(Arc::clone(buffer)));
                Mr::on_engines(pd, domain, region, buffer.addr(), access)
            }
            Backend::Verbs(domain) => {
                let back = Backend::Verbs(ibverbs::Mr::register(domain, buffer, access)?);
                Ok(Mr { pd: Arc::clone(pd), back })
            }
        }
    }

    /// Registers memory that the caller owns, such as a NumPy array or a C program's buffer. Its
    /// first byte gets the address `iova`.
    ///
    /// From now on, peers that know the key and work requests that name it may read the memory and,
    /// if `access` allows it, write it, at any time and from any thread.
    ///
    /// # Safety
    /// Until [`Mr::deregister`] or [`Device::shut_down`](crate::Device::shut_down) of its device
    /// has returned:
    ///
    /// * `addr..addr + len` stays mapped, readable and, with [`Access::LOCAL_WRITE`], writable;
    /// * nobody holds a Rust reference to it, except while no peer and no work request can access
    ///   it.
    ///
    /// After that nothing accesses the memory any more: every lane sends or copies what it has read
    /// from it before it releases its engine, and deregistering locks each engine in turn.
    #[allow(unsafe_code)]
    pub unsafe fn register_foreign(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        match &pd.back {
            Backend::Soft(domain) => {
                let region = || {
                    // SAFETY: the caller keeps the memory as `Region::from_raw` requires, until it
                    // is deregistered.
                    unsafe { Region::from_raw(addr, len) }
                };
                Mr::on_engines(pd, domain, region, iova, access)
            }
            Backend::Verbs(domain) => {
                // SAFETY: the caller keeps the memory until it is deregistered. A NIC that has
                // confirmed that no longer accesses it.
                let mr = unsafe { ibverbs::Mr::register_foreign(domain, addr, len, iova, access) }?;
                Ok(Mr { pd: Arc::clone(pd), back: Backend::Verbs(mr) })
            }
        }
    }

    fn on_engines(
        pd: &Arc<Pd>,
        domain: &mirror::Pd,
        region: impl Fn() -> Option<Region>,
        iova: u64,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        let key = mirror::register(pd.device().engines(), domain, region, iova, access)?;
        Ok(Mr { pd: Arc::clone(pd), back: Backend::Soft(key) })
    }

    /// The key for work requests at this end: the lkey.
    pub fn key(&self) -> MrKey {
        match &self.back {
            Backend::Soft(key) => *key,
            Backend::Verbs(mr) => MrKey(mr.lkey()),
        }
    }

    /// The key for peers. The soft NIC has one key for both; a verbs device may have two.
    pub fn rkey(&self) -> MrKey {
        match &self.back {
            Backend::Soft(key) => *key,
            Backend::Verbs(mr) => MrKey(mr.rkey()),
        }
    }

    /// The region's protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Changes the access rights. The key stays the same. Foreign memory must allow the new access,
    /// as [`Mr::register_foreign`] requires.
    pub fn set_access(&self, access: Access) -> Result<(), DeviceError> {
        let key = self.back.soft("changing the rights of registered memory")?;
        Ok(mirror::set_access(self.pd.device().engines(), *key, access)?)
    }

    /// Ends the registration. Work requests that still name the key fail.
    pub fn deregister(&self) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(key) => {
                let domain = self.pd.back.soft("memory of the soft NIC")?;
                Ok(mirror::deregister(self.pd.device().engines(), domain, *key)?)
            }
            Backend::Verbs(mr) => Ok(mr.deregister()?),
        }
    }
}
