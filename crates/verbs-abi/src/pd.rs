//! Protection domains.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_device::Pd as CorePd;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::{self, Context};
use crate::errno::{code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) ctx: Arc<Context>,
    pub(crate) core: Arc<CorePd>,
}

impl Public for ibv_pd {
    type Inner = Pd;
    const KIND: Kind = Kind::Pd;
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let ctx = context::find(context)?;
            let core = Arc::new(CorePd::create(ctx.core()?)?);
            ctx.objects.fetch_add(1, Ordering::AcqRel);
            Ok(handle::create(ibv_pd { context, handle: 0 }, Pd { ctx: Arc::clone(ctx), core }))
        })())
    })
}

/// `ibv_dealloc_pd`; `EBUSY` while anything is in the domain.
///
/// # Safety
/// `pd` must come from [`ibv_alloc_pd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(pd)?;
            inner.ctx.core()?;
            inner.core.destroy()?;
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(pd)
        })())
    })
}
