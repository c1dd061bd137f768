//! Memory windows, of type 2: work requests bind them and revoke their keys.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_device::Mw as CoreMw;
use bowline_nic::{SendOp, WindowBinding};

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::mr;
use crate::pd::Pd;

/// A memory window.
pub(crate) struct Mw {
    ctx: Arc<Context>,
    core: CoreMw,
}

impl Public for ibv_mw {
    type Inner = Mw;
    const KIND: Kind = Kind::Mw;
}

/// `ibv_alloc_mw`, in the context's table. Windows of type 1 and, on a device with a backup, all of them
/// give `EOPNOTSUPP`.
///
/// # Safety
/// `pd` must come from `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let domain: &Pd = handle::find(pd)?;
            let device = domain.ctx.core()?;
            if ![IBV_MW_TYPE_1, IBV_MW_TYPE_2].contains(&mw_type) {
                return Err(Errno::INVAL);
            }
            if mw_type != IBV_MW_TYPE_2 || !device.backup_lanes().is_empty() {
                return Err(Errno::UNSUPPORTED);
            }
            let core = CoreMw::alloc(&domain.core)?;
            domain.ctx.objects.fetch_add(1, Ordering::AcqRel);
            let rkey = core.key().0;
            // SAFETY: `pd` was found to be live.
            let context = unsafe { (*pd).context };
            let public = ibv_mw { context, pd, rkey, handle: rkey, mw_type };
            Ok(handle::create(public, Mw { ctx: Arc::clone(&domain.ctx), core }))
        })())
    })
}

/// `ibv_dealloc_mw`, in the context's table. A key that is bound is revoked.
///
/// # Safety
/// `mw` must come from [`alloc_mw`].
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(mw)?;
            inner.ctx.core()?;
            inner.core.dealloc()?;
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(mw)
        })())
    })
}

/// The request that binds a window under a key.
pub(crate) fn bind(mw: *mut ibv_mw, key: u32, info: &ibv_mw_bind_info) -> Result<SendOp, Errno> {
    let window = handle::find(mw)?;
    let remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    // Windows are for peers: what the region allows its owner does not matter here, and programs repeat it.
    let known = remote | IBV_ACCESS_LOCAL_WRITE;
    let theirs = window.core.key().0 >> 8 == key >> 8;
    if !theirs || info.mw_access_flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    Ok(SendOp::BindWindow(WindowBinding {
        key,
        region: mr::key(info.mr)?,
        addr: info.addr,
        len: info.length,
        access: mr::access_of(info.mw_access_flags & remote)?,
    }))
}
