//! Devices and contexts, with the tables through which a program's inline functions call.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    NoObject, NoVerb, ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr,
    ibv_device_attr_ex, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind, ibv_parent_domain_init_attr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_wc,
    ibv_xrcd, ibv_xrcd_init_attr,
};

#[repr(C)]
pub struct ibv_device {
    pub ops: [*const c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

pub const IBV_NODE_CA: c_int = 1;
pub const IBV_TRANSPORT_IB: c_int = 0;

#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    pub _compat_query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut c_void) -> c_int,
    pub _compat_alloc_pd: NoObject,
    pub _compat_dealloc_pd: NoObject,
    pub _compat_reg_mr: NoObject,
    pub _compat_rereg_mr: NoObject,
    pub _compat_dereg_mr: NoObject,
    pub alloc_mw: unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw,
    pub bind_mw: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
    pub dealloc_mw: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
    pub _compat_create_cq: NoObject,
    pub poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub _compat_cq_event: NoObject,
    pub _compat_resize_cq: NoObject,
    pub _compat_destroy_cq: NoObject,
    pub _compat_create_srq: NoObject,
    pub _compat_modify_srq: NoObject,
    pub _compat_query_srq: NoObject,
    pub _compat_destroy_srq: NoObject,
    pub post_srq_recv:
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub _compat_create_qp: NoObject,
    pub _compat_query_qp: NoObject,
    pub _compat_modify_qp: NoObject,
    pub _compat_destroy_qp: NoObject,
    pub post_send:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub _compat_create_ah: NoObject,
    pub _compat_destroy_ah: NoObject,
    pub _compat_attach_mcast: NoObject,
    pub _compat_detach_mcast: NoObject,
    pub _compat_async_event: NoObject,
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

pub const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

/// Grows upward: newer versions put fields in front, and `sz` says how many are there.
#[repr(C)]
pub struct verbs_context {
    pub query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int,
    pub advise_mr: unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *const ibv_sge, u32) -> c_int,
    pub alloc_null_mr: NoObject,
    pub read_counters: NoVerb,
    pub attach_counters_point_flow: NoVerb,
    pub create_counters: NoObject,
    pub destroy_counters: NoVerb,
    pub reg_dm_mr:
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr,
    pub alloc_dm: unsafe extern "C" fn(*mut ibv_context, *const ibv_alloc_dm_attr) -> *mut ibv_dm,
    pub free_dm: unsafe extern "C" fn(*mut ibv_dm) -> c_int,
    pub modify_flow_action_esp: NoVerb,
    pub destroy_flow_action: NoVerb,
    pub create_flow_action_esp: NoObject,
    pub modify_qp_rate_limit: NoVerb,
    pub alloc_parent_domain:
        unsafe extern "C" fn(*mut ibv_context, *const ibv_parent_domain_init_attr) -> *mut ibv_pd,
    pub dealloc_td: unsafe extern "C" fn(*mut ibv_td) -> c_int,
    pub alloc_td: unsafe extern "C" fn(*mut ibv_context, *const ibv_td_init_attr) -> *mut ibv_td,
    pub modify_cq: NoVerb,
    pub post_srq_ops: unsafe extern "C" fn(*mut ibv_srq, *mut c_void, *mut *mut c_void) -> c_int,
    pub destroy_rwq_ind_table: NoVerb,
    pub create_rwq_ind_table: NoObject,
    pub destroy_wq: NoVerb,
    pub modify_wq: NoVerb,
    pub create_wq: NoObject,
    pub query_rt_values: unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int,
    pub create_cq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
    pub private: *mut c_void,
    pub query_device_ex: unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int,
    pub ibv_destroy_flow: NoVerb,
    pub abi_placeholder2: NoVerb,
    pub ibv_create_flow: NoObject,
    pub abi_placeholder1: NoVerb,
    pub open_qp: NoObject,
    pub create_qp_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
    pub get_srq_num: unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int,
    pub create_srq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
    pub open_xrcd:
        unsafe extern "C" fn(*mut ibv_context, *const ibv_xrcd_init_attr) -> *mut ibv_xrcd,
    pub close_xrcd: unsafe extern "C" fn(*mut ibv_xrcd) -> c_int,
    pub abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
