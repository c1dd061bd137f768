//! Queue pairs: making and destroying them.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_device::{Cq as CoreCq, Pd as CorePd, Qp as CoreQp, QpRequest, Xrcd as CoreXrcd};
use bowline_nic::{Event, Nic, Operations, QpType, Time};
use bowline_wire::Qpn;

use crate::abi::*;
use crate::acks::Acks;
use crate::context::Context;
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::sys::RawLock;
use crate::wr::{self, Builder};

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) ctx: Arc<Context>,
    core: CoreQp,
    pub(crate) qp_type: QpType,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signal_all: bool,
    /// Asynchronous events that the program got.
    pub(crate) events: Acks,
    /// Operations that `ibv_wr_*` may be used for; none for a QP not made for it.
    pub(crate) send_ops: u64,
    /// Held from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    pub(crate) building: RawLock,
    /// What `ibv_wr_*` has built so far.
    pub(crate) builder: UnsafeCell<Builder>,
}

// SAFETY: the builder is used between `ibv_wr_start` and its end only, under the lock.
unsafe impl Sync for Qp {}

impl Public for ibv_qp_ex {
    type Inner = Qp;
    const KIND: Kind = Kind::Qp;
}

impl Qp {
    /// The device's queue pair, if this process opened the device.
    #[inline]
    pub(crate) fn core(&self) -> Result<&CoreQp, Errno> {
        self.ctx.core()?;
        Ok(&self.core)
    }

    /// Posts through `post`, which gets the current QP number of the connection. It may be called
    /// again after [`Errno::AWAY`].
    #[inline]
    pub(crate) fn post(
        &self,
        mut post: impl FnMut(&mut Nic, Time, Qpn) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let posted = self.core()?.post(|nic, now, qpn| match post(nic, now, qpn) {
            Err(Errno::AWAY) => None,
            done => Some(done),
        })?;
        posted.unwrap_or(Err(Errno::IO))
    }
}

/// Marks a QP that `ibv_qp_to_qp_ex` accepts.
const VERBS_QP_EX: u64 = 1;

pub(crate) fn qp_type(value: c_uint) -> Result<QpType, Errno> {
    match value {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Ok(QpType::Xrc),
        // Raw packets and drivers' own types.
        _ => Err(Errno::UNSUPPORTED),
    }
}

/// Operations that a type of QP has.
fn supported_ops(qp_type: QpType) -> u64 {
    const NAMES: [(Operations, u64); 9] = [
        (Operations::SEND, IBV_QP_EX_WITH_SEND),
        (Operations::SEND_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM),
        (Operations::SEND_INVALIDATE, IBV_QP_EX_WITH_SEND_WITH_INV),
        (Operations::WRITE, IBV_QP_EX_WITH_RDMA_WRITE),
        (Operations::WRITE_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM),
        (Operations::READ, IBV_QP_EX_WITH_RDMA_READ),
        (Operations::COMPARE_SWAP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
        (Operations::FETCH_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
        (Operations::WINDOWS, IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV),
    ];
    let has = qp_type.descriptor().operations;
    NAMES.iter().filter(|(op, _)| has.contains(*op)).fold(0, |ops, (_, name)| ops | name)
}

/// The domain and the completion queues of a QP.
struct Surroundings {
    ctx: Arc<Context>,
    context: *mut ibv_context,
    pd: Arc<CorePd>,
    send_cq: Arc<CoreCq>,
    recv_cq: Arc<CoreCq>,
    xrcd: Option<Arc<CoreXrcd>>,
}

impl Surroundings {
    /// For a QP in a protection domain. One that only sends needs no queue for receives.
    fn in_domain(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<Surroundings, Errno> {
        let domain = handle::find(pd)?;
        let cq = |cq: *mut ibv_cq| -> Result<Arc<CoreCq>, Errno> {
            Ok(Arc::clone(handle::find(cq.cast::<ibv_cq_ex>())?.core()?))
        };
        let send_cq = cq(init.send_cq)?;
        let recv_cq = match init.qp_type {
            IBV_QPT_XRC_RECV => return Err(Errno::INVAL),
            IBV_QPT_XRC_SEND => Arc::clone(&send_cq),
            _ => cq(init.recv_cq)?,
        };
        Ok(Surroundings {
            ctx: Arc::clone(&domain.ctx),
            // SAFETY: `pd` was found to be live.
            context: unsafe { (*pd).context },
            pd: Arc::clone(&domain.core),
            send_cq,
            recv_cq,
            xrcd: None,
        })
    }

    /// For a QP that receives for the shared receive queues of an XRC domain, and has no queues
    /// itself.
    fn in_xrcd(xrcd: *mut ibv_xrcd) -> Result<Surroundings, Errno> {
        let domain = handle::find(xrcd)?;
        Ok(Surroundings {
            ctx: Arc::clone(&domain.ctx),
            // SAFETY: `xrcd` was found to be live.
            context: unsafe { (*xrcd).context },
            pd: Arc::clone(domain.core.pd()),
            send_cq: Arc::clone(domain.core.cq()),
            recv_cq: Arc::clone(domain.core.cq()),
            xrcd: Some(Arc::clone(&domain.core)),
        })
    }
}

/// Makes a QP; returns its actual sizes to the program.
pub(crate) fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp, Errno> {
    qp_type(init.qp_type)?;
    create_in(Surroundings::in_domain(pd, init)?, pd, init, send_ops)
}

fn create_in(
    place: Surroundings,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp, Errno> {
    let ctx = &place.ctx;
    let qp_type = qp_type(init.qp_type)?;
    let srq = if init.srq.is_null() { None } else { Some(handle::find(init.srq)?) };
    if send_ops.is_some_and(|ops| ops & !supported_ops(qp_type) != 0) {
        return Err(Errno::UNSUPPORTED);
    }
    let max_sge = |asked: u32| u8::try_from(asked).map_err(|_| Errno::INVAL);
    ctx.core()?;
    let shared = srq.is_some() || qp_type.descriptor().addressed;
    let receives = place.xrcd.is_some();
    let cap = ibv_qp_cap {
        max_send_wr: if receives { 0 } else { init.cap.max_send_wr.max(1) },
        max_recv_wr: if shared { 0 } else { init.cap.max_recv_wr },
        max_send_sge: init.cap.max_send_sge.max(1),
        max_recv_sge: if shared { 0 } else { init.cap.max_recv_sge },
        max_inline_data: init.cap.max_inline_data,
    };
    let signal_all = init.sq_sig_all != 0;
    let core = CoreQp::create(QpRequest {
        qp_type,
        pd: place.pd,
        send_cq: place.send_cq,
        recv_cq: place.recv_cq,
        xrcd: place.xrcd,
        srq: srq.map(|srq| Arc::clone(&srq.core)),
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: max_sge(cap.max_send_sge)?,
        max_recv_sge: max_sge(cap.max_recv_sge)?,
        max_inline: cap.max_inline_data,
        signal_all,
        lane: None,
    })?;
    let qpn = core.qpn();
    init.cap = cap;
    let base = ibv_qp {
        context: place.context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qpn.get(),
        qp_num: qpn.get(),
        state: IBV_QPS_RESET,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let inner = Qp {
        ctx: Arc::clone(ctx),
        core,
        qp_type,
        cap: init.cap,
        signal_all,
        events: Acks::default(),
        send_ops: send_ops.unwrap_or(0),
        building: RawLock::new(),
        builder: UnsafeCell::new(Builder::new(if send_ops.is_some() { &init.cap } else { &NONE })),
    };
    let comp_mask = if send_ops.is_some() { VERBS_QP_EX } else { 0 };
    let qp = handle::create(wr::public(base, comp_mask), inner);
    ctx.objects.fetch_add(1, Ordering::AcqRel);
    ctx.owners.lock().qps.insert(qpn.get(), qp as usize);
    Ok(qp.cast())
}

/// No capacity: for the builder of a QP without one.
const NONE: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` must be a protection domain, and `init` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    guard(core::ptr::null_mut(), || {
        // SAFETY: null, or attributes by the caller's word.
        let init = unsafe { init.as_mut() };
        object(init.ok_or(Errno::INVAL).and_then(|init| create(pd, init, None)))
    })
}

/// `ibv_create_qp_ex`, in the context's table.
///
/// # Safety
/// `init` must point to attributes.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    guard(core::ptr::null_mut(), || {
        object((|| {
            // SAFETY: null, or attributes by the caller's word.
            let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
            let known = IBV_QP_INIT_ATTR_PD
                | IBV_QP_INIT_ATTR_XRCD
                | IBV_QP_INIT_ATTR_CREATE_FLAGS
                | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            let has = |bit: u32| init.comp_mask & bit != 0;
            if init.comp_mask & !known != 0
                || (has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0)
            {
                return Err(Errno::UNSUPPORTED);
            }
            let receives = init.qp_type == IBV_QPT_XRC_RECV;
            let home = if receives { IBV_QP_INIT_ATTR_XRCD } else { IBV_QP_INIT_ATTR_PD };
            if !has(home) {
                return Err(Errno::INVAL);
            }
            let send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
            let mut plain = ibv_qp_init_attr {
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
            };
            let qp = if receives {
                let place = Surroundings::in_xrcd(init.xrcd)?;
                create_in(place, core::ptr::null_mut(), &mut plain, send_ops)?
            } else {
                create(init.pd, &mut plain, send_ops)?
            };
            init.cap = plain.cap;
            Ok(qp)
        })())
    })
}

/// `ibv_qp_to_qp_ex`: null for a QP that was not made for `ibv_wr_*`.
///
/// # Safety
/// `qp` must be a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    guard(core::ptr::null_mut(), || {
        let ex = qp.cast::<ibv_qp_ex>();
        match handle::find(ex) {
            // SAFETY: the QP lives.
            Ok(_) if unsafe { (*ex).comp_mask } & VERBS_QP_EX != 0 => ex,
            _ => core::ptr::null_mut(),
        }
    })
}

/// `ibv_destroy_qp`: waits until its events are acknowledged. Its outstanding work is dropped.
///
/// # Safety
/// `qp` must be a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let qp = qp.cast::<ibv_qp_ex>();
            let inner = handle::find(qp)?;
            let core = inner.core()?;
            let qpn = core.qpn();
            core.destroy()?;
            let about = |event: &Event| match *event {
                Event::CommEstablished(q)
                | Event::SqDrained(q)
                | Event::QpFatal(q)
                | Event::QpRequestError(q)
                | Event::QpAccessError(q)
                | Event::LastWqeReached(q)
                | Event::PathFailed(q)
                | Event::PeerLost(q) => q == qpn,
                Event::CqNotify(_) | Event::CqOverflow(_) | Event::SrqLimit(_) => false,
            };
            inner.ctx.disown(about, |tables| _ = tables.qps.remove(&qpn.get()));
            inner.events.wait();
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(qp)
        })())
    })
}
