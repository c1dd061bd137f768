//! Domains of extended reliable connections.
//!
//! With other providers, processes share a domain through a file that both open. A soft NIC's
//! queues are in the memory of one process, so a file stands for one domain per process: opening it
//! again there gives the same one.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_device::Xrcd as CoreXrcd;

use crate::abi::*;
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::sys;

/// One pointer to a domain.
pub(crate) struct Xrcd {
    pub(crate) ctx: Arc<Context>,
    pub(crate) core: Arc<CoreXrcd>,
    /// The file that it was opened by.
    file: Option<(u64, u64)>,
}

impl Public for ibv_xrcd {
    type Inner = Xrcd;
    const KIND: Kind = Kind::Xrcd;
}

/// The domain in a list that a file stands for.
fn of_file(ctx: &Arc<Context>, file: (u64, u64)) -> Option<Arc<CoreXrcd>> {
    let is_it = |xrcd: &Xrcd| xrcd.file == Some(file) && Arc::ptr_eq(&xrcd.ctx, ctx);
    let found = handle::search::<ibv_xrcd>(is_it)?;
    Some(Arc::clone(&handle::find(found).ok()?.core))
}

fn open(ctx: &Arc<Context>, attr: &ibv_xrcd_init_attr) -> Result<Xrcd, Errno> {
    let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask & !both != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if attr.comp_mask != both {
        return Err(Errno::INVAL);
    }
    let file = if attr.fd == -1 { None } else { Some(sys::file_id(attr.fd)?) };
    let found = file.and_then(|file| of_file(ctx, file));
    let may = |flag| attr.oflags & flag != 0;
    let core = match found {
        Some(_) if may(libc::O_EXCL) => return Err(Errno::INVAL),
        Some(core) => core,
        None if file.is_some() && !may(libc::O_CREAT) => return Err(Errno(libc::EAGAIN)),
        None => Arc::new(CoreXrcd::create(ctx.core()?)?),
    };
    Ok(Xrcd { ctx: Arc::clone(ctx), core, file })
}

/// `ibv_open_xrcd`, in the context's table.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *const ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let ctx = context::find(context)?;
            // SAFETY: null, or attributes by the caller's word.
            let xrcd = open(ctx, unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?)?;
            ctx.objects.fetch_add(1, Ordering::AcqRel);
            Ok(handle::create(ibv_xrcd { context }, xrcd))
        })())
    })
}

/// `ibv_close_xrcd`, in the context's table; `EBUSY` for the last pointer while anything is in the
/// domain.
///
/// # Safety
/// `xrcd` must come from [`open_xrcd`].
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(xrcd)?;
            inner.ctx.core()?;
            let others = |other: &Xrcd| {
                Arc::ptr_eq(&other.core, &inner.core) && !core::ptr::eq(other, inner)
            };
            if handle::search::<ibv_xrcd>(others).is_none() {
                inner.core.destroy()?;
            }
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(xrcd)
        })())
    })
}
