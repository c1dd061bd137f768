//! Thread domains and parent domains: hints about locking, which this NIC does not need.
//!
//! A parent domain is a protection domain under another pointer. Whatever is created in it belongs
//! to the protection domain. One that allows unprotected memory in a confidential guest changes
//! nothing: this NIC reaches protected memory.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{
    PARENT_DOMAIN_INIT_ATTR_ALL, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td,
    ibv_td_init_attr,
};
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::pd::Pd;

impl Public for ibv_td {
    type Inner = Arc<Context>;
    const KIND: Kind = Kind::Td;
}

/// `ibv_alloc_td`, in the context's table.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *const ibv_td_init_attr,
) -> *mut ibv_td {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let ctx = context::find(context)?;
            // SAFETY: null, or attributes by the caller's word.
            let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
            if attr.comp_mask != 0 {
                return Err(Errno::INVAL);
            }
            ctx.core()?;
            ctx.objects.fetch_add(1, Ordering::AcqRel);
            Ok(handle::create(ibv_td { context }, Arc::clone(ctx)))
        })())
    })
}

/// `ibv_dealloc_td`, in the context's table.
///
/// # Safety
/// `td` must come from [`alloc_td`].
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let ctx = Arc::clone(handle::find(td)?);
            handle::destroy(td)?;
            ctx.objects.fetch_sub(1, Ordering::AcqRel);
            Ok(())
        })())
    })
}

/// `ibv_alloc_parent_domain`, in the context's table. A program's own allocators are for providers
/// that keep queues in the program's memory. Ours are elsewhere, so the allocators are not called.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *const ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    guard(core::ptr::null_mut(), || {
        object((|| {
            // SAFETY: null, or attributes by the caller's word.
            let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
            if attr.comp_mask & !PARENT_DOMAIN_INIT_ATTR_ALL != 0 {
                return Err(Errno::UNSUPPORTED);
            }
            if !attr.td.is_null() {
                handle::find(attr.td)?;
            }
            let pd: &Pd = handle::find(attr.pd)?;
            let child = pd.child()?;
            child.ctx.objects.fetch_add(1, Ordering::AcqRel);
            Ok(handle::create(child.public(context), child))
        })())
    })
}
