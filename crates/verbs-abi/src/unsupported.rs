//! Public verbs without an implementation, each with the matching error, and those about forking,
//! which need none.

use core::ffi::{c_int, c_uint, c_void};

use crate::abi::{IBV_FORK_UNNEEDED, ibv_ece, ibv_qp};
use crate::errno::{Errno, code, minus_one, object};

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

/// Verbs of newer headers: there are no descriptors of device memory and no completion counters.
/// They fail whatever the arguments, which are not read.
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
    ibv_dm_export_dmabuf_fd -> c_int = minus_one(Err(Errno::UNSUPPORTED));
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
