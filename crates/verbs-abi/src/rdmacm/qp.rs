//! Queue pairs of identifiers: created with them, and moved through their states.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::abi::*;
use super::id::{self, Id};
use crate::abi::*;
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::context::PORT;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::{Errno, minus_one};
use crate::gid;
use crate::guard::guard;
use crate::handle;
use crate::modify::ibv_modify_qp;
use crate::qp::ibv_destroy_qp;

/// Rights of peers on memory that is registered for them.
const ACCESS: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;
/// Waits 4.096 µs · 2^this for acknowledgements, unless the program sets another timeout: 67 ms.
pub(super) const ACK_TIMEOUT: u8 = 14;
/// RNR timer of 82 ms. The kernel's is 655: programs choose their retry counts for that, and some
/// post a receive rather late.
const MIN_RNR_TIMER: u8 = 26;

/// Attributes for a state, and their mask.
fn attributes(inner: &Id, state: c_uint) -> Result<(ibv_qp_attr, c_int), Errno> {
    // SAFETY: a plain C struct for which zeroes are valid.
    let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
    attr.qp_state = state;
    let mask = match state {
        IBV_QPS_INIT => {
            (attr.pkey_index, attr.port_num, attr.qp_access_flags) = (0, PORT, ACCESS);
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
        }
        IBV_QPS_RTR => ready_to_receive(inner, &mut attr)?,
        IBV_QPS_RTS => {
            let known = inner.state();
            // Each end chooses the first PSN that the other sends.
            attr.sq_psn = match (&known.req, &known.rep) {
                (Some(req), _) => req.starting_psn.get(),
                (None, Some(rep)) => rep.starting_psn.get(),
                (None, None) => return Err(Errno::INVAL),
            };
            (attr.timeout, attr.retry_cnt) = (known.ack_timeout, known.retry_count & 7);
            attr.rnr_retry = known.rnr_retry_count & 7;
            attr.max_rd_atomic = known.initiator_depth;
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        IBV_QPS_ERR => 0,
        _ => return Err(Errno::INVAL),
    };
    Ok((attr, mask | IBV_QP_STATE))
}

fn ready_to_receive(inner: &Id, attr: &mut ibv_qp_attr) -> Result<c_int, Errno> {
    let peer = id::peer_of(inner)?;
    let port = inner.port()?;
    let largest = port.ctx.core()?.config().max_mtu.bytes();
    let known = inner.state();
    let (qpn, mtu) = match (&known.req, &known.rep) {
        (Some(req), _) => (req.local_qpn, req.path_mtu),
        (None, Some(rep)) => (rep.local_qpn, mtu_number(largest)),
        (None, None) => return Err(Errno::INVAL),
    };
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.grh.dgid = gid::of_addr(peer);
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.traffic_class = known.traffic_class;
    attr.path_mtu = c_uint::from(mtu.clamp(1, mtu_number(largest)));
    (attr.dest_qp_num, attr.rq_psn) = (qpn.get(), known.psn.get());
    attr.max_dest_rd_atomic = known.responder_resources;
    attr.min_rnr_timer = MIN_RNR_TIMER;
    Ok(IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER)
}

/// An MTU as verbs number them.
pub(super) fn mtu_number(bytes: u32) -> u8 {
    (bytes.max(256).ilog2() - 7).min(5) as u8
}

/// Takes the QP of an identifier to a state.
pub(super) fn modify(id: *mut rdma_cm_id, inner: &Id, state: c_uint) -> Result<(), Errno> {
    let (mut attr, mask) = attributes(inner, state)?;
    // SAFETY: the identifier lives, and so does its QP until `rdma_destroy_qp`.
    match unsafe { ibv_modify_qp((*id).qp, &raw mut attr, mask) } {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

/// A datagram QP is ready at once.
fn activate_ud(qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: a plain C struct for which zeroes are valid.
    let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
    (attr.port_num, attr.qkey) = (PORT, RDMA_UDP_QKEY);
    let steps = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        (IBV_QPS_RTR, 0),
        (IBV_QPS_RTS, IBV_QP_SQ_PSN),
    ];
    for (state, mask) in steps {
        attr.qp_state = state;
        // SAFETY: a QP that was just made.
        let error = unsafe { ibv_modify_qp(qp, &raw mut attr, mask | IBV_QP_STATE) };
        if error != 0 {
            return Err(Errno(error));
        }
    }
    Ok(())
}

/// Makes the QP of an identifier, with queues and a domain if it is given none.
pub(super) fn create(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<(), Errno> {
    let inner = Arc::clone(handle::find(id)?);
    inner.port()?;
    // SAFETY: the identifier lives.
    let public = unsafe { &mut *id };
    if !public.qp.is_null() {
        return Err(Errno::INVAL);
    }
    let pd = if pd.is_null() { public.pd } else { pd };
    if init.srq.is_null() {
        init.srq = public.srq;
    }
    make_queues(&inner, public, init)?;
    let made = crate::qp::create(pd, init, send_ops);
    let qp = made.inspect_err(|_| free_queues(id, &inner))?;
    (public.qp, public.pd) = (qp, pd);
    (public.send_cq, public.recv_cq) = (init.send_cq, init.recv_cq);
    public.qp_type = init.qp_type;
    let ready = match init.qp_type {
        IBV_QPT_UD => activate_ud(qp),
        _ => modify(id, &inner, IBV_QPS_INIT),
    };
    ready.inspect_err(|_| destroy(id))
}

/// Queues with their own channels, for a program that gave none.
fn make_queues(
    inner: &Id,
    public: &mut rdma_cm_id,
    init: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let id: *mut rdma_cm_id = public;
    let (send, recv) = (init.cap.max_send_wr, init.cap.max_recv_wr);
    let wanted = [
        (&mut init.send_cq, &mut public.send_cq, &mut public.send_cq_channel, send),
        (&mut init.recv_cq, &mut public.recv_cq, &mut public.recv_cq_channel, recv),
    ];
    for (asked, cq, channel, entries) in wanted {
        if !asked.is_null() {
            continue;
        }
        inner.state().owns_cqs = true;
        let context = public.verbs;
        // SAFETY: the device is open.
        *channel = unsafe { ibv_create_comp_channel(context) };
        let entries = c_int::try_from(entries.max(1)).map_err(|_| Errno::INVAL)?;
        // SAFETY: as above; the channel is null or was just made. Inline functions of the header
        // expect the identifier with the events of its queues.
        *cq = unsafe { ibv_create_cq(context, entries, id.cast(), *channel, 0) };
        if channel.is_null() || cq.is_null() {
            return Err(Errno::last());
        }
        *asked = *cq;
    }
    Ok(())
}

/// Frees the queues that were made with a QP.
pub(super) fn free_queues(id: *mut rdma_cm_id, inner: &Id) {
    if !core::mem::take(&mut inner.state().owns_cqs) {
        return;
    }
    // SAFETY: the identifier lives; what has a channel was made here and is used by nobody.
    unsafe {
        let public = &mut *id;
        for (cq, channel) in [
            (&mut public.send_cq, &mut public.send_cq_channel),
            (&mut public.recv_cq, &mut public.recv_cq_channel),
        ] {
            if !channel.is_null() {
                ibv_destroy_cq(*cq);
                ibv_destroy_comp_channel(*channel);
                (*cq, *channel) = (core::ptr::null_mut(), core::ptr::null_mut());
            }
        }
    }
}

fn destroy(id: *mut rdma_cm_id) {
    let Ok(inner) = handle::find(id) else { return };
    // SAFETY: the identifier lives; its QP is destroyed once.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_destroy_qp((*id).qp);
            (*id).qp = core::ptr::null_mut();
        }
    }
    free_queues(id, inner);
}

/// A copy of attributes, which the program may change afterwards.
pub(super) fn copy(init: &ibv_qp_init_attr) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
    }
}

/// `rdma_create_qp`.
///
/// # Safety
/// `id` must be an identifier with a device, `pd` null or a domain, `init` attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard(-1, || {
        // SAFETY: null, or attributes by the caller's word.
        let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL);
        minus_one(init.and_then(|init| create(id, pd, init, None)))
    })
}

/// `rdma_create_qp_ex`, for what `rdma_create_qp` can do.
///
/// # Safety
/// As for [`rdma_create_qp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    init: *mut ibv_qp_init_attr_ex,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            // SAFETY: null, or attributes by the caller's word.
            let asked = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
            let has = |bit: u32| asked.comp_mask & bit != 0;
            if asked.comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 {
                return Err(Errno::UNSUPPORTED);
            }
            let pd = if has(IBV_QP_INIT_ATTR_PD) { asked.pd } else { core::ptr::null_mut() };
            let send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(asked.send_ops_flags);
            let mut plain = ibv_qp_init_attr {
                qp_context: asked.qp_context,
                send_cq: asked.send_cq,
                recv_cq: asked.recv_cq,
                srq: asked.srq,
                cap: asked.cap,
                qp_type: asked.qp_type,
                sq_sig_all: asked.sq_sig_all,
            };
            create(id, pd, &mut plain, send_ops)?;
            asked.cap = plain.cap;
            Ok(())
        })())
    })
}

/// `rdma_destroy_qp`.
///
/// # Safety
/// `id` must be an identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    guard((), || destroy(id));
}

/// `rdma_init_qp_attr`: the attributes for a state, for programs that manage their own QPs.
///
/// # Safety
/// `id` must be an identifier; the others must point to what their names say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            if attr.is_null() || mask.is_null() {
                return Err(Errno::INVAL);
            }
            let inner = handle::find(id)?;
            // SAFETY: neither is null, so both are what they should be by the caller's word.
            unsafe { (*attr, *mask) = attributes(inner, (*attr).qp_state)? };
            Ok(())
        })())
    })
}
