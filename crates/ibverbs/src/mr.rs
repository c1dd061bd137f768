//! Memory regions and memory windows.

use core::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_nic::{Access, Buffer, Region};
use bowline_verbs_types::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_MW_TYPE_2, ibv_mr, ibv_mw, ibv_pd,
};

use crate::pd::Registered;
use crate::{Pd, VerbsError};

/// Registered memory.
pub struct Mr {
    pd: Arc<Pd>,
    /// `None` once it is deregistered.
    raw: Mutex<Option<Raw>>,
    lkey: u32,
    rkey: u32,
    /// Memory of Bowline's own lives as long as the registration.
    buffer: Option<Arc<Buffer>>,
}

struct Raw(*mut ibv_mr);

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Raw {}

impl Mr {
    /// Registers memory of Bowline's own.
    pub fn register(pd: &Arc<Pd>, buffer: &Arc<Buffer>, access: Access) -> Result<Mr, VerbsError> {
        let region = Region::owned(Arc::clone(buffer));
        // SAFETY: the region holds the buffer, which is only ever touched by raw copies.
        unsafe { Mr::new(pd, region, buffer.addr(), access, Some(Arc::clone(buffer))) }
    }

    /// Registers memory that somebody else owns, under the address `iova`.
    ///
    /// # Safety
    /// Until [`Mr::deregister`] has returned, or this is dropped, `addr..addr + len` stays mapped,
    /// readable and, with [`Access::LOCAL_WRITE`], writable, and nobody holds a Rust reference to
    /// it, except while no peer and no work request can touch it.
    pub unsafe fn register_foreign(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        // SAFETY: the memory lives by the caller's word.
        let region = unsafe { Region::from_raw(addr, len) };
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let region = region
            .ok_or_else(|| VerbsError::Refused { what: "register memory", source: invalid() })?;
        // SAFETY: as above.
        unsafe { Mr::new(pd, region, iova, access, None) }
    }

    /// # Safety
    /// As for [`Mr::register_foreign`]; `buffer` may be what keeps the memory alive.
    pub(crate) unsafe fn new(
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
        buffer: Option<Arc<Buffer>>,
    ) -> Result<Mr, VerbsError> {
        if access.contains(Access::REMOTE_INVALIDATE) {
            return Err(VerbsError::Unsupported {
                what: "region whose key a peer may revoke",
                instead: "bind a memory window to it, whose key a SEND with invalidate revokes",
            });
        }
        let (addr, len) = (region.addr() as *mut u8, region.len());
        let flags = access_flags(access);
        // SAFETY: the domain lives; the memory does by the caller's word.
        let raw =
            unsafe { (pd.context.library.ibv_reg_mr_iova)(pd.raw, addr.cast(), len, iova, flags) };
        if raw.is_null() {
            return Err(VerbsError::last("register memory"));
        }
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        pd.add_region(lkey, Registered { raw, region, iova, access });
        let raw = Mutex::new(Some(Raw(raw)));
        Ok(Mr { pd: Arc::clone(pd), raw, lkey, rkey, buffer })
    }

    /// The key that work requests of this end name.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key that peers name.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Ends the registration. What still names its keys fails, and nothing touches the memory any
    /// more.
    pub fn deregister(&self) -> Result<(), VerbsError> {
        let mut raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mr) = &*raw else { return Ok(()) };
        // Before it ends: its key may be another region's afterwards.
        let registered = self.pd.remove_region(self.lkey);
        // SAFETY: registered by us, and deregistered once.
        let code = unsafe { (self.pd.context.library.ibv_dereg_mr)(mr.0) };
        if let Err(error) = VerbsError::check("deregister memory", code) {
            if let Some(registered) = registered {
                self.pd.add_region(self.lkey, registered);
            }
            return Err(error);
        }
        *raw = None;
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.deregister().is_err() {
            // A window is bound to it. The provider still knows the memory, which must not be
            // freed.
            std::mem::forget(self.buffer.take());
        }
    }
}

/// A memory window of type 2.
pub struct Mw {
    pd: Arc<Pd>,
    raw: *mut ibv_mw,
    key: u32,
}

// SAFETY: verbs objects may be used from any thread, and from several at once.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

type AllocMw = unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw;
type DeallocMw = unsafe extern "C" fn(*mut ibv_mw) -> c_int;

impl Mw {
    /// Allocates a window that is not bound.
    pub fn alloc(pd: &Arc<Pd>) -> Result<Mw, VerbsError> {
        let context = pd.context.raw;
        // SAFETY: an open context has its table; a provider without windows may have null there.
        let alloc =
            unsafe { (&raw const (*context).ops.alloc_mw).cast::<Option<AllocMw>>().read() };
        let unsupported = VerbsError::Unsupported {
            what: "memory window of type 2",
            instead: "register the memory once for each key, and deregister it to revoke the key",
        };
        let Some(alloc) = alloc.filter(|_| pd.context.caps().has_windows) else {
            return Err(unsupported);
        };
        // SAFETY: the domain lives.
        let raw = unsafe { alloc(pd.raw, IBV_MW_TYPE_2) };
        if raw.is_null() {
            return Err(VerbsError::last("allocate a memory window"));
        }
        // The header's inline function does this, and providers leave it to that.
        // SAFETY: just made, and nobody else's.
        let key = unsafe {
            (*raw).pd = pd.raw;
            (*raw).mw_type = IBV_MW_TYPE_2;
            (*raw).rkey
        };
        pd.add_window(key, raw);
        Ok(Mw { pd: Arc::clone(pd), raw, key })
    }

    /// Its key, with a last byte of zero.
    pub fn key(&self) -> u32 {
        self.key & !0xff
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.pd.remove_window(self.key);
        let context = self.pd.context.raw;
        // SAFETY: an open context has its table, and this window came from it; it ends once.
        unsafe {
            let dealloc = (&raw const (*context).ops.dealloc_mw).cast::<Option<DeallocMw>>().read();
            if let Some(dealloc) = dealloc {
                let _ = dealloc(self.raw);
            }
        }
    }
}

/// Rights, as the header has them.
pub(crate) fn access_flags(access: Access) -> c_int {
    let pairs = [
        (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
        (Access::BIND_WINDOW, IBV_ACCESS_MW_BIND),
    ];
    let flags = pairs.iter().filter(|(right, _)| access.contains(*right));
    flags.fold(0, |all, (_, flag)| all | *flag as c_int)
}
