//! The tables of functions that a context carries.
//!
//! No entry is null: a program that calls an unsupported verb gets `EOPNOTSUPP`.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use crate::abi::{self, ibv_context, ibv_context_ops, ibv_device, ibv_srq};
use crate::context::EXTENDED;
use crate::errno::Errno;
use crate::{cq, dm, domain, mr, mw, poll, post, qp, query, srq, xrcd};

unsafe extern "C" fn no_verb() -> c_int {
    Errno::UNSUPPORTED.set();
    libc::EOPNOTSUPP
}

unsafe extern "C" fn no_object() -> *mut c_void {
    Errno::UNSUPPORTED.set();
    core::ptr::null_mut()
}

unsafe extern "C" fn post_srq_ops(
    _srq: *mut ibv_srq,
    op: *mut c_void,
    bad_op: *mut *mut c_void,
) -> c_int {
    if !bad_op.is_null() {
        // SAFETY: not null, so a pointer to a pointer by the caller's word.
        unsafe { *bad_op = op };
    }
    libc::EOPNOTSUPP
}

/// The descriptors that a context exposes.
pub(crate) struct ContextFds {
    pub(crate) commands: c_int,
    pub(crate) events: c_int,
}

/// A context with its tables filled in.
pub(crate) fn verbs_context(
    device: *mut ibv_device,
    fds: ContextFds,
    num_comp_vectors: c_int,
) -> abi::verbs_context {
    abi::verbs_context {
        query_port: query::query_port_ex,
        advise_mr: mr::advise_mr,
        alloc_null_mr: no_object,
        read_counters: no_verb,
        attach_counters_point_flow: no_verb,
        create_counters: no_object,
        destroy_counters: no_verb,
        reg_dm_mr: dm::reg_dm_mr,
        alloc_dm: dm::alloc_dm,
        free_dm: dm::free_dm,
        modify_flow_action_esp: no_verb,
        destroy_flow_action: no_verb,
        create_flow_action_esp: no_object,
        modify_qp_rate_limit: no_verb,
        alloc_parent_domain: domain::alloc_parent_domain,
        dealloc_td: domain::dealloc_td,
        alloc_td: domain::alloc_td,
        modify_cq: no_verb,
        post_srq_ops,
        destroy_rwq_ind_table: no_verb,
        create_rwq_ind_table: no_object,
        destroy_wq: no_verb,
        modify_wq: no_verb,
        create_wq: no_object,
        query_rt_values: query::query_rt_values,
        create_cq_ex: cq::create_cq_ex,
        private: core::ptr::null_mut(),
        query_device_ex: query::query_device_ex,
        ibv_destroy_flow: no_verb,
        abi_placeholder2: no_verb,
        ibv_create_flow: no_object,
        abi_placeholder1: no_verb,
        open_qp: no_object,
        create_qp_ex: qp::create_qp_ex,
        get_srq_num: srq::get_srq_num,
        create_srq_ex: srq::create_srq_ex,
        open_xrcd: xrcd::open_xrcd,
        close_xrcd: xrcd::close_xrcd,
        abi_placeholder3: 0,
        // Newer headers add fields before these: the size tells them that they are absent.
        sz: size_of::<abi::verbs_context>(),
        context: ibv_context {
            device,
            ops: context_ops(),
            cmd_fd: fds.commands,
            async_fd: fds.events,
            num_comp_vectors,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: EXTENDED,
        },
    }
}

// `verbs_get_ctx` finds one from the other by this distance.
const _: () = assert!(
    offset_of!(abi::verbs_context, context) + size_of::<ibv_context>()
        == size_of::<abi::verbs_context>()
);

fn context_ops() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: query::ibv_query_device,
        _compat_query_port: query::ibv_query_port,
        _compat_alloc_pd: no_object,
        _compat_dealloc_pd: no_object,
        _compat_reg_mr: no_object,
        _compat_rereg_mr: no_object,
        _compat_dereg_mr: no_object,
        alloc_mw: mw::alloc_mw,
        bind_mw: mw::bind_mw,
        dealloc_mw: mw::dealloc_mw,
        _compat_create_cq: no_object,
        poll_cq: poll::poll_cq,
        req_notify_cq: cq::req_notify_cq,
        _compat_cq_event: no_object,
        _compat_resize_cq: no_object,
        _compat_destroy_cq: no_object,
        _compat_create_srq: no_object,
        _compat_modify_srq: no_object,
        _compat_query_srq: no_object,
        _compat_destroy_srq: no_object,
        post_srq_recv: post::post_srq_recv,
        _compat_create_qp: no_object,
        _compat_query_qp: no_object,
        _compat_modify_qp: no_object,
        _compat_destroy_qp: no_object,
        post_send: post::post_send,
        post_recv: post::post_recv,
        _compat_create_ah: no_object,
        _compat_destroy_ah: no_object,
        _compat_attach_mcast: no_object,
        _compat_detach_mcast: no_object,
        _compat_async_event: no_object,
    }
}
