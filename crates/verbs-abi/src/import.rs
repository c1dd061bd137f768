//! Importing: another pointer to a device, a domain, a region or device memory of this process.
//!
//! With other providers a process imports what another one shares by a descriptor. A soft NIC lives
//! in the memory of the process that opened it, so descriptors from elsewhere give `EOPNOTSUPP`.

use core::ffi::c_int;
use core::ptr;

use crate::abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::errno::object;
use crate::guard::guard;
use crate::{context, dm, mr, pd};

/// `ibv_import_device`: a second context of the device with this command descriptor, or a duplicate
/// of it. The context takes ownership of the descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    guard(ptr::null_mut(), || object(context::import(cmd_fd)))
}

/// `ibv_import_pd`: a second pointer to the domain with this handle. Until it is unimported the
/// domain is in use.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    guard(ptr::null_mut(), || object(pd::import(context, pd_handle)))
}

/// `ibv_unimport_pd`.
///
/// # Safety
/// `pd` must come from [`ibv_import_pd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    guard((), || pd::unimport(pd));
}

/// `ibv_import_mr`: a second pointer to the region with this handle. It has the keys and no
/// address.
///
/// # Safety
/// `pd` must be a protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    guard(ptr::null_mut(), || object(mr::import(pd, mr_handle)))
}

/// `ibv_unimport_mr`: the region stays registered.
///
/// # Safety
/// `mr` must come from [`ibv_import_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    guard((), || mr::unimport(mr));
}

/// `ibv_import_dm`: a second pointer to the device memory of this handle.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    guard(ptr::null_mut(), || object(dm::import(context, dm_handle)))
}

/// `ibv_unimport_dm`: the memory stays while anything else uses it.
///
/// # Safety
/// `dm` must come from [`ibv_import_dm`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    guard((), || dm::unimport(dm));
}
