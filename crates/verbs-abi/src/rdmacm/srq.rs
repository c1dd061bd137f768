//! Shared receive queues of identifiers.

use core::ffi::c_int;

use super::abi::*;
use super::qp;
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

/// An identifier that has a device and no queue yet.
fn without_queue<'a>(id: *mut rdma_cm_id) -> Result<&'a mut rdma_cm_id, Errno> {
    handle::find(id)?.port()?;
    // SAFETY: the identifier lives.
    let public = unsafe { &mut *id };
    if public.srq.is_null() { Ok(public) } else { Err(Errno::INVAL) }
}

fn keep(id: &mut rdma_cm_id, srq: *mut ibv_srq) -> Result<(), Errno> {
    if srq.is_null() {
        return Err(Errno::last());
    }
    id.srq = srq;
    Ok(())
}

/// `rdma_create_srq`: QPs of the identifier take their receives from it.
///
/// # Safety
/// `id` must be an identifier with a device, `pd` null or a domain, `attr` attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    guard(-1, || {
        minus_one(without_queue(id).and_then(|id| {
            let pd = if pd.is_null() { id.pd } else { pd };
            // SAFETY: attributes by the caller's word.
            keep(id, unsafe { ibv_create_srq(pd, attr) })
        }))
    })
}

/// `rdma_create_srq_ex`, for basic queues.
///
/// # Safety
/// `id` must be an identifier with a device, `attr` attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    guard(-1, || {
        minus_one(without_queue(id).and_then(|id| {
            // SAFETY: null, or attributes by the caller's word.
            let asked = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
            if asked.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || asked.pd.is_null() {
                asked.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
                asked.pd = id.pd;
            }
            // SAFETY: as above.
            keep(id, unsafe { create_srq_ex(id.verbs, asked) })
        }))
    })
}

/// `rdma_destroy_srq`.
///
/// # Safety
/// `id` must be an identifier whose QP, if it has one, uses the queue no longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    guard((), || destroy(id));
}

pub(super) fn destroy(id: *mut rdma_cm_id) {
    let Ok(inner) = handle::find(id) else { return };
    // SAFETY: the identifier lives; its queue is destroyed once.
    unsafe {
        let srq = core::mem::replace(&mut (*id).srq, core::ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
        }
    }
    qp::free_queues(id, inner);
}
