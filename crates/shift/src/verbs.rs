//! The verbs that this library interposes: exported under libibverbs' names, or written into a
//! context's table.
//!
//! All other functions are those of the system's libibverbs.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::null_mut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bowline_failover::Rail;
use bowline_ibverbs::{Library, address};
use bowline_verbs_types::{
    IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_wc,
};
use bowline_wire::Qpn;

use crate::cq::{Cq, CqSeat};
use crate::qp::{InitAttrs, Qp, QpSeat, RecvAttrs, SendAttrs};
use crate::session::{self, Session};
use crate::table::Table;
use crate::{events, log, unseen};

pub(crate) static QPS: Table<QpSeat> = Table::new();
pub(crate) static CQS: Table<CqSeat> = Table::new();

/// `IBV_REREG_MR_CHANGE_ACCESS`.
const REREG_ACCESS: c_int = 4;

/// The system's library, or the errno that explains its absence.
fn library() -> Result<&'static Library, c_int> {
    Library::get().map_err(|error| {
        log::log().warn(&format!("failover: {error}"));
        libc::ENOSYS
    })
}

fn set_errno(code: c_int) {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = code };
}

/// Catches panics: a C program could not survive one.
fn guarded(what: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(what)).is_err() {
        log::log().warn("failover: a bug in Bowline; connections made from now on have no backup");
    }
}

/// Runs background work of a successful verb without changing the errno that the verb left.
pub(crate) fn behind(what: impl FnOnce()) {
    // SAFETY: errno belongs to this thread.
    let before = unsafe { *libc::__errno_location() };
    guarded(what);
    set_errno(before);
}

/// `ibv_open_device`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let library = match library() {
        Ok(library) => library,
        Err(code) => {
            set_errno(code);
            return null_mut();
        }
    };
    unseen::opening(|| {
        // SAFETY: upheld by the caller.
        let context = unsafe { (library.ibv_open_device)(device) };
        if !context.is_null() {
            // SAFETY: the program passed a valid device, and the name lives as long as the device.
            let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) };
            behind(|| session::opened(library, context, &name.to_string_lossy()));
        }
        context
    })
}

/// `ibv_close_device`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    behind(|| session::closing(context));
    // SAFETY: upheld by the caller.
    library().map_or_else(|code| code, |library| unsafe { (library.ibv_close_device)(context) })
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let Ok(library) = library() else { return null_mut() };
    // SAFETY: upheld by the caller.
    let pd = unsafe { (library.ibv_alloc_pd)(context) };
    if !pd.is_null() {
        behind(|| {
            if let Some(session) = session::of(context) {
                session.shadow_pd(pd);
            }
        });
    }
    pd
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the program passed a valid domain.
    let context = unsafe { (*pd).context };
    behind(|| {
        if let Some(session) = session::of(context) {
            session.end_pd(pd);
        }
    });
    // SAFETY: upheld by the caller.
    library().map_or_else(|code| code, |library| unsafe { (library.ibv_dealloc_pd)(pd) })
}

/// `ibv_reg_mr`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: upheld by the caller.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: upheld by the caller.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_mr_iova2`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let Ok(library) = library() else { return null_mut() };
    // SAFETY: upheld by the caller.
    let mr = unsafe { (library.ibv_reg_mr_iova2)(pd, addr, length, iova, access) };
    if !mr.is_null() {
        // SAFETY: the program passed a valid domain.
        let context = unsafe { (*pd).context };
        behind(|| {
            if let Some(session) = session::of(context) {
                session.shadow_mr(mr, iova, access);
            }
        });
    }
    mr
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the program passed a valid region.
    let context = unsafe { (*mr).context };
    behind(|| {
        if let Some(session) = session::of(context) {
            let _ = session.end_mr(mr);
        }
    });
    // SAFETY: upheld by the caller.
    library().map_or_else(|code| code, |library| unsafe { (library.ibv_dereg_mr)(mr) })
}

/// `ibv_rereg_mr`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let library = match library() {
        Ok(library) => library,
        Err(code) => return code,
    };
    // SAFETY: the program passed a valid region.
    let session = session::of(unsafe { (*mr).context });
    // Do this first: the counterpart must not give access to memory that the program no longer
    // registers.
    let mut ended = None;
    behind(|| ended = session.as_ref().and_then(|session| session.end_mr(mr)));
    // SAFETY: upheld by the caller.
    let code = unsafe { (library.ibv_rereg_mr)(mr, flags, pd, addr, length, access) };
    behind(|| {
        let Some((session, before)) = session.zip(ended) else { return };
        if code == 0 {
            let access = if flags & REREG_ACCESS != 0 { access as c_uint } else { before };
            // SAFETY: the program passed a valid region; its start address is either new or
            // unchanged.
            session.shadow_mr(mr, unsafe { (*mr).addr } as u64, access);
        }
    });
    code
}

/// `ibv_create_cq`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let Ok(library) = library() else { return null_mut() };
    // SAFETY: upheld by the caller.
    let cq = unsafe { (library.ibv_create_cq)(context, cqe, cq_context, channel, comp_vector) };
    if !cq.is_null() {
        behind(|| {
            if let Some(session) = session::of(context) {
                let polls = session.providers.each_ref().map(|provider| provider.poll_cq);
                let known = Arc::new(Cq::new(cq, channel, polls));
                CQS.insert(cq, Arc::clone(&known));
                events::join(&known);
                session.shadow_cq(known, cqe);
            }
        });
    }
    cq
}

/// `ibv_resize_cq`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let library = match library() {
        Ok(library) => library,
        Err(code) => return code,
    };
    // SAFETY: upheld by the caller.
    let code = unsafe { (library.ibv_resize_cq)(cq, cqe) };
    if let (0, Some(known)) = (code, CQS.hold(cq)) {
        // SAFETY: the program passed a valid completion queue.
        let context = unsafe { (*cq).context };
        behind(|| {
            if let Some(session) = session::of(context) {
                session.resize_shadow_cq(known, cqe);
            }
        });
    }
    code
}

/// `ibv_destroy_cq`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let library = match library() {
        Ok(library) => library,
        Err(code) => return code,
    };
    let Some(known) = CQS.hold(cq) else {
        // SAFETY: upheld by the caller.
        return unsafe { (library.ibv_destroy_cq)(cq) };
    };
    // SAFETY: the program passed a valid completion queue.
    let context = unsafe { (*cq).context };
    // SAFETY: upheld by the caller.
    let code = unsafe { (library.ibv_destroy_cq)(cq) };
    if code == 0 {
        behind(|| {
            CQS.remove(cq);
            events::leave(&known);
            if let Some(session) = session::of(context) {
                session.end_cq(&known);
            }
        });
    }
    code
}

/// `ibv_create_qp`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let Ok(library) = library() else { return null_mut() };
    // SAFETY: upheld by the caller.
    let asked = unsafe { (*init).cap };
    // SAFETY: upheld by the caller.
    let qp = unsafe { (library.ibv_create_qp)(pd, init) };
    if qp.is_null() {
        return qp;
    }
    // SAFETY: the program passed a valid domain and valid attributes.
    let (context, init) = unsafe { ((*pd).context, &*init) };
    behind(|| {
        let Some(session) = session::of(context) else { return };
        if init.qp_type != IBV_QPT_RC {
            return;
        }
        let cqs = CQS.hold(init.send_cq).zip(CQS.hold(init.recv_cq));
        if !init.srq.is_null() {
            return session.tell_once("a queue pair with a shared receive queue has no backup");
        }
        let Some((send_cq, recv_cq)) = cqs else {
            return session
                .tell_once("a queue pair with an extended completion queue has no backup");
        };
        let known = Arc::new(Qp::new(&session, qp, init, [send_cq, recv_cq]));
        known.send_cq.join(&known);
        known.recv_cq.join(&known);
        QPS.insert(qp, Arc::clone(&known));
        session.add_qp(Rail::Default, &known);
        session.shadow_qp(known, pd, asked, (init.qp_type, init.sq_sig_all));
    });
    qp
}

/// `ibv_modify_qp`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let library = match library() {
        Ok(library) => library,
        Err(code) => return code,
    };
    // SAFETY: upheld by the caller.
    let real = || unsafe { (library.ibv_modify_qp)(qp, attr, mask) };
    let Some(known) = QPS.hold(qp) else { return real() };
    // SAFETY: upheld by the caller.
    let (to, context) = unsafe { ((*attr).qp_state, (*qp).context) };
    let session = session::of(context);
    let moves = mask & IBV_QP_STATE != 0;
    let goes_on = matches!(to, IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS);
    if moves && !goes_on {
        // The program resets, drains or fails the queue pair: from here on failover must not move
        // it.
        behind(|| {
            if let Some(session) = &session {
                session.shadow.flush();
                session.end(&known);
            }
            if to == IBV_QPS_ERR && known.is_held() {
                // Flush the requests here: its provider does not have them.
                known.fail();
            }
        });
    }
    let code = real();
    if code == 0 && moves {
        // SAFETY: upheld by the caller.
        let attr = unsafe { *attr };
        behind(|| changed(session.as_ref(), &known, attr, mask));
    }
    code
}

/// The program has changed the state of a queue pair.
fn changed(session: Option<&Arc<Session>>, qp: &Arc<Qp>, attr: ibv_qp_attr, mask: c_int) {
    let mut attrs = qp.attrs();
    match attr.qp_state {
        IBV_QPS_RESET => {
            *attrs = Default::default();
            drop(attrs);
            qp.begin_anew();
        }
        IBV_QPS_INIT => attrs.init = Some(InitAttrs::new(&attr, mask)),
        IBV_QPS_RTR => {
            attrs.rtr = Some(RecvAttrs::new(&attr, mask));
            let peer = address(&attr.ah_attr.grh.dgid);
            attrs.peer = Some((peer, Qpn::new(attr.dest_qp_num & 0xff_ffff)));
            drop(attrs);
            if let Some(session) = session {
                let qp = Arc::clone(qp);
                // Run this in order: the counterpart may not exist yet.
                session.shadow.order(move |session| session.begin(&qp));
            }
        }
        IBV_QPS_RTS => attrs.rts = Some(SendAttrs::new(&attr, mask)),
        _ => {}
    }
}

/// `ibv_query_qp`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let library = match library() {
        Ok(library) => library,
        Err(code) => return code,
    };
    // SAFETY: upheld by the caller.
    let code = unsafe { (library.ibv_query_qp)(qp, attr, mask, init) };
    let known = QPS.hold(qp).filter(|known| !known.is_home() && !known.has_failed());
    if code == 0 && known.is_some() {
        // The connection is on the backup, so the state on its own device is not that of the
        // connection.
        // SAFETY: the caller provided room for the attributes, which the provider has filled in.
        unsafe { ((*attr).qp_state, (*attr).cur_qp_state) = (IBV_QPS_RTS, IBV_QPS_RTS) };
    }
    code
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let library = match library() {
        Ok(library) => library,
        Err(code) => return code,
    };
    if let Some(known) = QPS.remove(qp) {
        // SAFETY: the program passed a valid queue pair.
        let context = unsafe { (*qp).context };
        behind(|| {
            if let Some(session) = session::of(context) {
                session.end_qp(&known);
            }
        });
    }
    // SAFETY: upheld by the caller.
    unsafe { (library.ibv_destroy_qp)(qp) }
}

/// `ibv_get_cq_event`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let Ok(library) = library() else { return -1 };
    // SAFETY: upheld by the caller.
    unsafe { events::get(library, channel, cq, cq_context) }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// Same as for the libibverbs function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    let Ok(library) = library() else { return };
    // SAFETY: upheld by the caller.
    unsafe { events::ack(library, CQS.hold(cq).as_deref(), cq, nevents) };
}

/// `ibv_post_send`, in a context's table.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `prepare` ran before this function was put into any context.
    let seat = unsafe { QPS.seat(qp) };
    if seat.enter(qp) {
        // SAFETY: upheld by the caller.
        return unsafe { seat.post_send(qp, wr, bad) };
    }
    // SAFETY: upheld by the caller.
    unsafe { post_send_slowly(qp, wr, bad) }
}

#[cold]
#[inline(never)]
unsafe fn post_send_slowly(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program keeps its queue pair alive during the call.
    if let Some(known) = unsafe { QPS.find(qp) } {
        // SAFETY: upheld by the caller.
        return unsafe { known.post_send(qp, wr, bad) };
    }
    // SAFETY: the program passed a valid queue pair.
    match session::of(unsafe { (*qp).context }) {
        // SAFETY: upheld by the caller.
        Some(session) => unsafe { (session.providers[0].post_send)(qp, wr, bad) },
        None => libc::EINVAL,
    }
}

/// `ibv_post_recv`, in a context's table.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `prepare` ran before this function was put into any context.
    let seat = unsafe { QPS.seat(qp) };
    if seat.enter(qp) {
        // SAFETY: upheld by the caller.
        return unsafe { seat.post_recv(qp, wr, bad) };
    }
    // SAFETY: upheld by the caller.
    unsafe { post_recv_slowly(qp, wr, bad) }
}

#[cold]
#[inline(never)]
unsafe fn post_recv_slowly(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program keeps its queue pair alive during the call.
    if let Some(known) = unsafe { QPS.find(qp) } {
        // SAFETY: upheld by the caller.
        return unsafe { known.post_recv(qp, wr, bad) };
    }
    // SAFETY: the program passed a valid queue pair.
    match session::of(unsafe { (*qp).context }) {
        // SAFETY: upheld by the caller.
        Some(session) => unsafe { (session.providers[0].post_recv)(qp, wr, bad) },
        None => libc::EINVAL,
    }
}

/// `ibv_poll_cq`, in a context's table.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `prepare` ran before this function was put into any context.
    let seat = unsafe { CQS.seat(cq) };
    if seat.enter(cq, wc) {
        // SAFETY: upheld by the caller.
        return unsafe { seat.poll(cq, count, wc) };
    }
    // SAFETY: upheld by the caller.
    unsafe { poll_cq_slowly(cq, count, wc) }
}

#[cold]
#[inline(never)]
unsafe fn poll_cq_slowly(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the program keeps its queue alive during the call.
    if let Some(known) = unsafe { CQS.find(cq) } {
        // SAFETY: upheld by the caller.
        return unsafe { known.poll(cq, count, wc) };
    }
    // SAFETY: the program passed a valid completion queue.
    match session::of(unsafe { (*cq).context }) {
        // SAFETY: upheld by the caller.
        Some(session) => unsafe { (session.providers[0].poll_cq)(cq, count, wc) },
        None => -libc::EINVAL,
    }
}

/// `ibv_req_notify_cq`, in a context's table.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program keeps its queue alive during the call.
    if let Some(known) = unsafe { CQS.find(cq) } {
        known.armed.store(true, core::sync::atomic::Ordering::Release);
    }
    // SAFETY: the program passed a valid completion queue.
    match session::of(unsafe { (*cq).context }) {
        // SAFETY: upheld by the caller.
        Some(session) => unsafe { (session.providers[0].notify_cq)(cq, solicited_only) },
        None => libc::EINVAL,
    }
}
