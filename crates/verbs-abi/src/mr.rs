//! Memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bowline_device::Mr as CoreMr;
use bowline_nic::{Access, MrKey};

use crate::abi::*;
use crate::context::Context;
use crate::dm::Block;
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::pd::Pd;
use crate::sys;

/// A memory region.
pub(crate) struct Mr {
    ctx: Arc<Context>,
    /// The handle by which the program may import it: its first key.
    handle: u32,
    registration: Mutex<Registration>,
    /// The block of ours that contains it, kept alive with it.
    block: Option<Arc<Block>>,
}

/// The current registration of a region; re-registering changes it.
#[derive(Clone)]
struct Registration {
    pd: *mut ibv_pd,
    addr: usize,
    len: usize,
    iova: u64,
    access: c_uint,
    core: Arc<CoreMr>,
}

impl Public for ibv_mr {
    type Inner = Mr;
    const KIND: Kind = Kind::Mr;
}

/// Translates access flags; rejects unsupported ones.
pub(crate) fn access_of(flags: c_uint) -> Result<Access, Errno> {
    let known = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        // Pages are reached through the process's own page tables, so all memory is on demand.
        | IBV_ACCESS_ON_DEMAND
        // A hint.
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_OPTIONAL_RANGE;
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, flags & IBV_ACCESS_LOCAL_WRITE != 0);
    access.set(Access::REMOTE_WRITE, flags & IBV_ACCESS_REMOTE_WRITE != 0);
    access.set(Access::REMOTE_READ, flags & IBV_ACCESS_REMOTE_READ != 0);
    access.set(Access::REMOTE_ATOMIC, flags & IBV_ACCESS_REMOTE_ATOMIC != 0);
    access.set(Access::BIND_WINDOW, flags & IBV_ACCESS_MW_BIND != 0);
    Ok(access)
}

/// The key that a region has at the moment.
pub(crate) fn key(mr: *mut ibv_mr) -> Result<MrKey, Errno> {
    let inner: &Mr = handle::find(mr)?;
    Ok(inner.registration.lock().unwrap_or_else(|e| e.into_inner()).core.key())
}

/// Registers memory with the NIC.
fn register(
    pd: *mut ibv_pd,
    addr: usize,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> Result<Registration, Errno> {
    let domain: &Pd = handle::find(pd)?;
    let access = access_of(flags)?;
    let iova = if flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    sys::check_mapped(addr, len, access.contains(Access::LOCAL_WRITE))?;
    domain.ctx.core()?;
    // SAFETY: the memory was there just now, and a program that registers memory promises, here as
    // with any NIC, to keep it until it deregisters it.
    let core =
        unsafe { CoreMr::register_foreign(&domain.core, addr as *mut u8, len, iova, access) }?;
    Ok(Registration { pd, addr, len, iova, access: flags, core: Arc::new(core) })
}

fn create(pd: *mut ibv_pd, addr: usize, len: usize, iova: u64, flags: c_uint) -> *mut ibv_mr {
    object(
        register(pd, addr, len, iova, flags).and_then(|made| show(made, addr as *mut c_void, None)),
    )
}

/// Registers device memory. Programs must request zero-based addresses.
pub(crate) fn create_in_block(
    pd: *mut ibv_pd,
    addr: usize,
    len: usize,
    flags: c_uint,
    block: Arc<Block>,
) -> Result<*mut ibv_mr, Errno> {
    if flags & IBV_ACCESS_ZERO_BASED == 0 {
        return Err(Errno::INVAL);
    }
    // Device memory has no address.
    show(register(pd, addr, len, 0, flags)?, core::ptr::null_mut(), Some(block))
}

/// Registers a part of a buffer.
pub(crate) fn register_part(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: usize,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    let block = handle::find(buf)?.part(pd, addr, len)?;
    show(register(pd, addr, len, iova, flags)?, addr as *mut c_void, Some(block))
}

/// Returns a registration to the program, with `addr` as its visible address.
fn show(
    registration: Registration,
    addr: *mut c_void,
    block: Option<Arc<Block>>,
) -> Result<*mut ibv_mr, Errno> {
    let (pd, length, key) = (registration.pd, registration.len, registration.core.key().0);
    let domain: &Pd = handle::find(pd)?;
    // SAFETY: `pd` was found to be live.
    let context = unsafe { (*pd).context };
    domain.ctx.objects.fetch_add(1, Ordering::AcqRel);
    let public = ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
    let ctx = domain.ctx.clone();
    let registration = Mutex::new(registration);
    Ok(handle::create(public, Mr { ctx, handle: key, registration, block }))
}

/// Another pointer to the region of this handle.
pub(crate) fn import(pd: *mut ibv_pd, wanted: u32) -> Result<*mut ibv_mr, Errno> {
    let ctx = &handle::find(pd)?.ctx;
    let is_it = |mr: &Mr| mr.handle == wanted && Arc::ptr_eq(&mr.ctx, ctx);
    let original = handle::find(handle::search::<ibv_mr>(is_it).ok_or(Errno::INVAL)?)?;
    let registration = original.registration.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let block = original.block.clone();
    show(Registration { pd, ..registration }, core::ptr::null_mut(), block)
}

/// Releases a pointer that [`import`] returned.
pub(crate) fn unimport(mr: *mut ibv_mr) {
    if let Ok(inner) = handle::find(mr) {
        inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
        let _ = handle::destroy(mr);
    }
}

// SAFETY: the pointer in a registration is an address to compare and look up.
unsafe impl Send for Registration {}

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` must come from `ibv_alloc_pd`; the memory must stay mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    guard(core::ptr::null_mut(), || create(pd, addr as usize, len, addr as u64, access as c_uint))
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    guard(core::ptr::null_mut(), || create(pd, addr as usize, len, iova, access as c_uint))
}

/// `ibv_reg_mr_iova2`.
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    guard(core::ptr::null_mut(), || create(pd, addr as usize, len, iova, access))
}

/// `ibv_reg_mr_ex`, for memory that has an address. A DMA handle is a hint, which is not allowed
/// for memory on demand.
///
/// # Safety
/// As for [`ibv_reg_mr`]; `attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *const ibv_mr_init_attr,
) -> *mut ibv_mr {
    guard(core::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        object(if attr.is_null() { Err(Errno::INVAL) } else { unsafe { register_ex(pd, attr) } })
    })
}

/// # Safety
/// `attr` must point to attributes, of which those that its mask names are there.
unsafe fn register_ex(
    pd: *mut ibv_pd,
    attr: *const ibv_mr_init_attr,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: these are in every version of the structure.
    let (mask, addr, len, flags) =
        unsafe { ((*attr).comp_mask, (*attr).addr, (*attr).length, (*attr).access as c_uint) };
    let has = |bit| mask & bit != 0;
    let known = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA;
    if mask & !(known | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if !has(IBV_REG_MR_MASK_ADDR) {
        return Err(Errno::INVAL);
    }
    if has(IBV_REG_MR_MASK_DMAH) {
        // SAFETY: the mask says that it is there.
        handle::find(unsafe { (*attr).dmah })?;
        if flags & IBV_ACCESS_ON_DEMAND != 0 {
            return Err(Errno::INVAL);
        }
    }
    // SAFETY: in every version of the structure.
    let iova = if has(IBV_REG_MR_MASK_IOVA) { unsafe { (*attr).iova } } else { addr as u64 };
    if has(IBV_REG_MR_MASK_BUF) {
        // SAFETY: the mask says that it is there.
        let buf = unsafe { (*attr).buf };
        return register_part(pd, buf, addr as usize, len, iova, flags);
    }
    show(register(pd, addr as usize, len, iova, flags)?, addr, None)
}

/// `ibv_reg_dmabuf_mr`: a soft NIC cannot reach another device's memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    object(Err(Errno::UNSUPPORTED))
}

/// `ibv_advise_mr`, in the context's table: prefetches pages. Registered memory is present already.
///
/// # Safety
/// `pd` must come from `ibv_alloc_pd`, and `sges` point to as many elements as `count` says.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    _advice: c_uint,
    _flags: u32,
    sges: *const ibv_sge,
    count: u32,
) -> c_int {
    guard(libc::EIO, || {
        let known = handle::find(pd).map(drop);
        code(if sges.is_null() || count == 0 { Err(Errno::INVAL) } else { known })
    })
}

/// `ibv_rereg_mr`: registers again under the same object. New access rights for the same memory
/// keep the keys; otherwise they change, as with other providers.
///
/// # Safety
/// As for [`ibv_reg_mr`], of the new memory; `mr` must be registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    guard(IBV_REREG_MR_ERR_CMD, || {
        rereg(mr, flags, pd, addr as usize, len, access as c_uint).map_or_else(
            |error| {
                error.set();
                IBV_REREG_MR_ERR_INPUT
            },
            |()| 0,
        )
    })
}

fn rereg(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: usize,
    len: usize,
    access: c_uint,
) -> Result<(), Errno> {
    let all = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let inner: &Mr = handle::find(mr)?;
    if flags == 0 || flags & !all != 0 {
        return Err(Errno::INVAL);
    }
    let mut current = inner.registration.lock().unwrap_or_else(|e| e.into_inner());
    let mut wanted = current.clone();
    if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
        (wanted.addr, wanted.len, wanted.iova) = (addr, len, addr as u64);
    }
    if flags & IBV_REREG_MR_CHANGE_PD != 0 {
        wanted.pd = pd;
    }
    if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        wanted.access = access;
    }
    if flags == IBV_REREG_MR_CHANGE_ACCESS {
        let rights = access_of(access)?;
        sys::check_mapped(wanted.addr, wanted.len, rights.contains(Access::LOCAL_WRITE))?;
        wanted.core.set_access(rights)?;
        current.access = access;
        return Ok(());
    }
    // Register the new memory first: if that fails, the old registration stays.
    let new = register(wanted.pd, wanted.addr, wanted.len, wanted.iova, wanted.access)?;
    current.core.deregister()?;
    let key = new.core.key().0;
    // SAFETY: `mr` lives, and nobody else writes these fields.
    unsafe {
        (*mr).pd = new.pd;
        (*mr).addr = new.addr as *mut c_void;
        (*mr).length = new.len;
        (*mr).lkey = key;
        (*mr).rkey = key;
    }
    *current = new;
    Ok(())
}

/// `ibv_dereg_mr`. After it returns, the NIC does not touch the memory any more.
///
/// # Safety
/// `mr` must be registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(mr)?;
            inner.ctx.core()?;
            inner.registration.lock().unwrap_or_else(|e| e.into_inner()).core.deregister()?;
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(mr)
        })())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_are_taken_or_refused_never_dropped() {
        assert_eq!(access_of(0), Ok(Access::empty()));
        let all = Access::all() - Access::REMOTE_INVALIDATE;
        assert_eq!(access_of(0xf), Ok(all - Access::BIND_WINDOW));
        assert_eq!(access_of(0x1f), Ok(all));
        // A provider may ignore relaxed ordering.
        assert_eq!(access_of(1 | 1 << 20), Ok(Access::LOCAL_WRITE));
        assert_eq!(access_of(IBV_ACCESS_ON_DEMAND), Ok(Access::empty()));
        assert_eq!(access_of(1 << 8), Err(Errno::INVAL));
    }
}
