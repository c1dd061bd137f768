//! Memory windows. Work requests bind windows of type 2 and revoke their keys; a verb binds those
//! of type 1.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_device::Mw as CoreMw;
use bowline_nic::{MrKey, SendOp, SendWr, WindowBinding, WindowScope};

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::mr;
use crate::pd::Pd;
use crate::post;

/// A memory window.
pub(crate) struct Mw {
    ctx: Arc<Context>,
    core: CoreMw,
    scope: WindowScope,
}

impl Public for ibv_mw {
    type Inner = Mw;
    const KIND: Kind = Kind::Mw;
}

/// `ibv_alloc_mw`, in the context's table. A device with a backup has no windows, and one with
/// several lanes none of type 1: a window is bound on the lane of one queue pair, and all queue
/// pairs of its domain must find it.
///
/// # Safety
/// `pd` must come from `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let domain: &Pd = handle::find(pd)?;
            let device = domain.ctx.core()?;
            let scope = match mw_type {
                IBV_MW_TYPE_1 => WindowScope::Domain,
                IBV_MW_TYPE_2 => WindowScope::Qp,
                _ => return Err(Errno::INVAL),
            };
            let elsewhere = scope == WindowScope::Domain && device.lanes().len() > 1;
            if elsewhere || !device.backup_lanes().is_empty() {
                return Err(Errno::UNSUPPORTED);
            }
            let core = CoreMw::alloc(&domain.core)?;
            domain.ctx.objects.fetch_add(1, Ordering::AcqRel);
            let rkey = core.key().0;
            // SAFETY: `pd` was found to be live.
            let context = unsafe { (*pd).context };
            let public = ibv_mw { context, pd, rkey, handle: rkey, mw_type };
            Ok(handle::create(public, Mw { ctx: Arc::clone(&domain.ctx), core, scope }))
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

/// The work request that binds a window of type 2 under a key.
pub(crate) fn bind(mw: *mut ibv_mw, key: u32, info: &ibv_mw_bind_info) -> Result<SendOp, Errno> {
    let window: &Mw = handle::find(mw)?;
    if window.scope != WindowScope::Qp {
        return Err(Errno::INVAL);
    }
    window.binding(key, info)
}

impl Mw {
    fn binding(&self, key: u32, info: &ibv_mw_bind_info) -> Result<SendOp, Errno> {
        let remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        // Windows are for peers: the region's local rights do not matter here, and programs repeat
        // them.
        let known = remote | IBV_ACCESS_LOCAL_WRITE;
        let ours = self.core.key().0 >> TAG_BITS == key >> TAG_BITS;
        if !ours || info.mw_access_flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        let unbinds = self.scope == WindowScope::Domain && info.length == 0;
        Ok(SendOp::BindWindow(WindowBinding {
            key,
            region: if unbinds { MrKey(0) } else { mr::key(info.mr)? },
            addr: info.addr,
            len: info.length,
            access: mr::access_of(info.mw_access_flags & remote)?,
            scope: self.scope,
        }))
    }
}

/// Bits of a window's key that change with each bind.
const TAG_BITS: u32 = 8;

/// `ibv_bind_mw`, in the context's table: for windows of type 1, which get another key each time.
///
/// # Safety
/// `qp` must be a queue pair, `mw` come from [`alloc_mw`], and `bind` point to a request.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let window: &Mw = handle::find(mw)?;
            let through = handle::find(qp.cast::<ibv_qp_ex>())?;
            // SAFETY: null, or a request by the caller's word.
            let bind = unsafe { bind.as_ref() }.ok_or(Errno::INVAL)?;
            if window.scope != WindowScope::Domain {
                return Err(Errno::INVAL);
            }
            // SAFETY: the window lives.
            let before = unsafe { (*mw).rkey };
            let tag = (1 << TAG_BITS) - 1;
            let key = before & !tag | before.wrapping_add(1) & tag;
            let op = window.binding(key, &bind.bind_info)?;
            let flags = post::send_flags(bind.send_flags)?;
            let wr = SendWr { flags, ..SendWr::new(bind.wr_id, op, &[]) };
            through.post(|nic, now, qpn| Ok(nic.post_send(now, qpn, &wr)?))?;
            // SAFETY: the window lives; the field is ours to write.
            unsafe { (*mw).rkey = key };
            Ok(())
        })())
    })
}
