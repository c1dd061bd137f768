//! Endpoints: identifiers that are ready for use after one call.

use core::ffi::c_int;
use core::ptr::null_mut;

use super::abi::*;
use super::port::Name;
use super::{addr, id, qp, resolve, srq};
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;

/// `rdma_create_ep`: a synchronous identifier that is bound, or resolved and with a QP.
///
/// # Safety
/// `id` must point to a pointer; the others must be what `<rdma/rdma_cma.h>` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            // SAFETY: null, or a result of `rdma_getaddrinfo` by the caller's word.
            let res = unsafe { res.as_ref() }.ok_or(Errno::INVAL)?;
            if id.is_null() {
                return Err(Errno::INVAL);
            }
            let made = id::create(null_mut(), null_mut(), res.ai_port_space as u32)?;
            // SAFETY: null, or attributes by the caller's word.
            if let Err(error) = prepare(made, res, pd, unsafe { init.as_mut() }) {
                let _ = id::destroy(made);
                return Err(error);
            }
            // SAFETY: not null, so a place for a pointer by the caller's word.
            unsafe { *id = made };
            Ok(())
        })())
    })
}

fn prepare(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    let read = |at: *mut libc::sockaddr| {
        if at.is_null() {
            return Ok(None);
        }
        // SAFETY: not null, so an address by the caller's word.
        unsafe { addr::read(at) }.map(Some)
    };
    let (src, dst) = (read(res.ai_src_addr)?, read(res.ai_dst_addr)?);
    if res.ai_flags & RAI_PASSIVE != 0 {
        resolve::bind(id, src.ok_or(Errno::INVAL)?)?;
        let wanted = init.map(|init| (Name(pd), Box::new(qp::copy(init))));
        handle::find(id)?.state().qp_init = wanted;
        return Ok(());
    }
    resolve::resolve(id, src, dst.ok_or(Errno::INVAL)?)?;
    resolve::resolve_route(id)?;
    match init {
        Some(init) => {
            init.qp_type = res.ai_qp_type as u32;
            qp::create(id, pd, init, None)
        }
        None => Ok(()),
    }
}

/// `rdma_destroy_ep`.
///
/// # Safety
/// `id` must come from [`rdma_create_ep`] or `rdma_get_request`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    guard((), || {
        // SAFETY: an identifier by the caller's word.
        unsafe { qp::rdma_destroy_qp(id) };
        srq::destroy(id);
        let _ = id::destroy(id);
    });
}
