//! Options, ports, devices, and what is not supported.

use core::ffi::{c_int, c_void};

use super::abi::*;
use super::port;
use crate::abi::*;
use crate::device;
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;

const OPTION_ID: c_int = 0;
const OPTION_ID_TOS: c_int = 0;
const OPTION_ID_REUSEADDR: c_int = 1;
const OPTION_ID_AFONLY: c_int = 2;
const OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// `rdma_set_option`: the type of service and the ACK timeout. Address reuse and one family only
/// are taken and change nothing.
///
/// # Safety
/// `id` must be an identifier; `value` must point to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(id)?;
            if value.is_null() || level != OPTION_ID {
                return Err(Errno(libc::ENOSYS));
            }
            match (name, len) {
                (OPTION_ID_TOS, 1) => {
                    // SAFETY: a byte by the caller's word.
                    inner.state().traffic_class = unsafe { *value.cast::<u8>() };
                    Ok(())
                }
                (OPTION_ID_ACK_TIMEOUT, 1) => {
                    // SAFETY: as above. Five bits of it count.
                    inner.state().ack_timeout = unsafe { *value.cast::<u8>() } & 0x1f;
                    Ok(())
                }
                (OPTION_ID_REUSEADDR | OPTION_ID_AFONLY, 4) => Ok(()),
                _ => Err(Errno::INVAL),
            }
        })())
    })
}

/// `rdma_get_src_port`, in network byte order; 0 if there is none.
///
/// # Safety
/// `id` must be an identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    guard(0, || handle::find(id).map_or(0, |id| id.state().src.map_or(0, |src| src.port().to_be())))
}

/// `rdma_get_dst_port`, in network byte order; 0 if there is none.
///
/// # Safety
/// `id` must be an identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    guard(0, || handle::find(id).map_or(0, |id| id.state().dst.map_or(0, |dst| dst.port().to_be())))
}

/// `rdma_get_devices`: a null-terminated array of the contexts that connections are made on.
///
/// # Safety
/// `count` must be null or point to an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    guard(core::ptr::null_mut(), || {
        let opened = device::all().iter().filter_map(|device| port::of_device(device).ok());
        let contexts: Vec<*mut ibv_context> = opened.map(|port| port.context.0).collect();
        // SAFETY: `calloc` may be called with any sizes; the result is checked.
        let list = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) }
            .cast::<*mut ibv_context>();
        if list.is_null() {
            Errno::NOMEM.set();
            return list;
        }
        for (at, context) in contexts.iter().enumerate() {
            // SAFETY: the array has a place for every context and one more.
            unsafe { *list.add(at) = *context };
        }
        if !count.is_null() {
            // SAFETY: not null, so an `int` by the caller's word.
            unsafe { *count = contexts.len() as c_int };
        }
        list
    })
}

/// `rdma_free_devices`. The contexts stay open.
///
/// # Safety
/// `list` must be null or come from [`rdma_get_devices`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: it came from `calloc`, or is null, which `free` allows.
    unsafe { libc::free(list.cast()) };
}

/// Functions that fail with `EOPNOTSUPP`.
macro_rules! unsupported {
    ($($name:ident($($argument:ty),*);)*) => {$(
        /// Not supported: it fails with `EOPNOTSUPP`.
        ///
        /// # Safety
        /// None to speak of: it looks at nothing.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($(_: $argument),*) -> c_int {
            minus_one(Err(Errno::UNSUPPORTED))
        }
    )*};
}

unsupported! {
    rdma_set_local_ece(*mut rdma_cm_id, *mut ibv_ece);
    rdma_get_remote_ece(*mut rdma_cm_id, *mut ibv_ece);
    rdma_reject_ece(*mut rdma_cm_id, *const c_void, u8);
}
