//! Public verbs that there is nothing behind, each with the answer that tells so, and those about
//! forking, which need nothing.

use core::ffi::{c_int, c_uint, c_void};

use crate::abi::{IBV_FORK_UNNEEDED, ibv_context, ibv_ece, ibv_gid, ibv_mr, ibv_pd, ibv_qp};
use crate::errno::{Errno, code, minus_one, object};

/// `ibv_attach_mcast`: there are no multicast groups.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    code(Err(Errno::UNSUPPORTED))
}

/// `ibv_detach_mcast`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    code(Err(Errno::UNSUPPORTED))
}

/// `ibv_query_ece`: no enhancements to agree on.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    code(Err(Errno::UNSUPPORTED))
}

/// `ibv_set_ece`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    code(Err(Errno::UNSUPPORTED))
}

/// `ibv_query_qp_data_in_order`: no promise.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

/// `ibv_import_device`: a device belongs to one process.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_fd: c_int) -> *mut ibv_context {
    object(Err(Errno::UNSUPPORTED))
}

/// `ibv_import_pd`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    object(Err(Errno::UNSUPPORTED))
}

/// `ibv_unimport_pd`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// `ibv_import_mr`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    object(Err(Errno::UNSUPPORTED))
}

/// `ibv_unimport_mr`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

/// `ibv_import_dm`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    object(Err(Errno::UNSUPPORTED))
}

/// `ibv_unimport_dm`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

/// Verbs of newer headers: there are no DMA handles, buffers of a provider's own or completion counters. Whatever
/// the arguments, which nobody looks at, they fail.
macro_rules! refused {
    ($($name:ident -> $ret:ty = $answer:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: not supported.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> $ret {
            $answer
        }
    )*};
}

refused! {
    ibv_alloc_dmah -> *mut c_void = object(Err(Errno::UNSUPPORTED));
    ibv_dealloc_dmah -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_dm_export_dmabuf_fd -> c_int = minus_one(Err(Errno::UNSUPPORTED));
    ibv_alloc_buf -> *mut c_void = object(Err(Errno::UNSUPPORTED));
    ibv_reg_buf_mr -> *mut ibv_mr = object(Err(Errno::UNSUPPORTED));
    ibv_export_buf_dmabuf_fd -> c_int = minus_one(Err(Errno::UNSUPPORTED));
    _ibv_query_comp_cntr_caps -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_create_comp_cntr -> *mut c_void = object(Err(Errno::UNSUPPORTED));
    ibv_destroy_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_set_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_set_err_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_inc_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_inc_err_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_read_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_read_err_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
    ibv_qp_attach_comp_cntr -> c_int = code(Err(Errno::UNSUPPORTED));
}

/// `ibv_free_buf`: there is none to free.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_buf(_buf: *mut c_void) {}

/// `ibv_fork_init`: parents may fork as they are. See `fork` for what children may do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
