//! Protection domains.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_device::Pd as CorePd;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) ctx: Arc<Context>,
    pub(crate) core: Arc<CorePd>,
    /// The handle by which the program may import it.
    handle: u32,
    /// For a parent domain: the counter of the domain that it stands for.
    parent: Option<Arc<AtomicUsize>>,
    /// Parent domains that stand for it.
    children: Arc<AtomicUsize>,
}

impl Pd {
    fn new(ctx: Arc<Context>, core: Arc<CorePd>, parent: Option<Arc<AtomicUsize>>) -> Pd {
        let handle = ctx.next_handle();
        Pd { ctx, core, handle, parent, children: Arc::default() }
    }

    /// A parent domain for it, which keeps it in use until freed.
    pub(crate) fn child(&self) -> Result<Pd, Errno> {
        self.ctx.core()?;
        self.children.fetch_add(1, Ordering::AcqRel);
        let parent = Some(Arc::clone(&self.children));
        Ok(Pd::new(Arc::clone(&self.ctx), Arc::clone(&self.core), parent))
    }

    /// The structure that the program sees.
    pub(crate) fn public(&self, context: *mut ibv_context) -> ibv_pd {
        ibv_pd { context, handle: self.handle }
    }

    fn free(&self) -> Result<(), Errno> {
        self.ctx.core()?;
        if self.children.load(Ordering::Acquire) > 0 {
            return Err(Errno::BUSY);
        }
        match &self.parent {
            None => self.core.destroy()?,
            Some(siblings) => _ = siblings.fetch_sub(1, Ordering::AcqRel),
        }
        self.ctx.objects.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
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
            let pd = Pd::new(Arc::clone(ctx), core, None);
            Ok(handle::create(pd.public(context), pd))
        })())
    })
}

/// `ibv_dealloc_pd`; `EBUSY` while the domain contains anything.
///
/// # Safety
/// `pd` must come from [`ibv_alloc_pd`], or be a parent domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            handle::find(pd)?.free()?;
            handle::destroy(pd)
        })())
    })
}

/// Another pointer to the domain with this handle. It counts as a parent domain, and so keeps the
/// domain in use.
pub(crate) fn import(context: *mut ibv_context, wanted: u32) -> Result<*mut ibv_pd, Errno> {
    let ctx = context::find(context)?;
    let is_it = |pd: &Pd| pd.handle == wanted && Arc::ptr_eq(&pd.ctx, ctx);
    let original = handle::search::<ibv_pd>(is_it).ok_or(Errno::INVAL)?;
    let pd = handle::find(original)?.child()?;
    ctx.objects.fetch_add(1, Ordering::AcqRel);
    Ok(handle::create(ibv_pd { context, handle: wanted }, pd))
}

/// Releases a pointer that [`import`] returned.
pub(crate) fn unimport(pd: *mut ibv_pd) {
    let imported = handle::find(pd).is_ok_and(|inner| inner.parent.is_some());
    if imported && handle::find(pd).is_ok_and(|inner| inner.free().is_ok()) {
        let _ = handle::destroy(pd);
    }
}
