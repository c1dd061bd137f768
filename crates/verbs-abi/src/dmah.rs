//! DMA handles: cache hints for the reads and writes of a device. For a soft NIC, the processor
//! does these itself.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::*;
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::sys;

/// The highest processing hint that PCI Express has.
const MAX_HINT: u8 = 3;

impl Public for ibv_dmah {
    type Inner = Arc<Context>;
    const KIND: Kind = Kind::Dmah;
}

fn check(attr: &ibv_dmah_init_attr) -> Result<(), Errno> {
    let has = |bit| attr.comp_mask & bit != 0;
    let known = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
        | IBV_DMAH_INIT_ATTR_MASK_PH
        | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    if attr.comp_mask & !known != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let bad_cpu = has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && attr.cpu_id >= sys::processors();
    let bad_hint = has(IBV_DMAH_INIT_ATTR_MASK_PH) && attr.ph > MAX_HINT;
    let bad_memory =
        has(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && attr.tph_mem_type > IBV_TPH_MEM_TYPE_PM;
    if bad_cpu || bad_hint || bad_memory { Err(Errno::INVAL) } else { Ok(()) }
}

/// `ibv_alloc_dmah`.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_dmah(
    context: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let ctx = context::find(context)?;
            // SAFETY: null, or attributes by the caller's word.
            check(unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?)?;
            ctx.core()?;
            ctx.objects.fetch_add(1, Ordering::AcqRel);
            Ok(handle::create(ibv_dmah { context }, Arc::clone(ctx)))
        })())
    })
}

/// `ibv_dealloc_dmah`. Regions that were registered with it stay as they are.
///
/// # Safety
/// `dmah` must come from [`ibv_alloc_dmah`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            handle::find(dmah)?.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(dmah)
        })())
    })
}
