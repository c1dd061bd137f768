//! Shared receive queues.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bowline_device::Srq as CoreSrq;
use bowline_nic::{Event, RecvWr};

use crate::abi::*;
use crate::acks::Acks;
use crate::context::Context;
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) ctx: Arc<Context>,
    pub(crate) core: Arc<CoreSrq>,
    pub(crate) max_sge: u8,
    /// The limit that is armed.
    limit: AtomicU32,
    pub(crate) events: Acks,
}

impl Public for ibv_srq {
    type Inner = Srq;
    const KIND: Kind = Kind::Srq;
}

impl Srq {
    /// Posts a receive.
    #[inline]
    pub(crate) fn post(&self, wr: &RecvWr<'_>) -> Result<(), Errno> {
        self.ctx.core()?;
        Ok(self.core.post(wr)?)
    }

    fn arm_limit(&self, limit: u32) -> Result<(), Errno> {
        self.ctx.core()?;
        Ok(self.core.set_limit(limit)?)
    }

    /// The limit event is delivered to the program.
    pub(crate) fn limit_reached(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }
}

/// Makes a queue. One for extended reliable connections completes to `xrc`'s queue, and belongs to
/// its domain.
fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_srq_init_attr,
    xrc: Option<(*mut ibv_cq, *mut ibv_xrcd)>,
) -> Result<*mut ibv_srq, Errno> {
    let domain = handle::find(pd)?;
    let (max_wr, max_sge) = (init.attr.max_wr.max(1), init.attr.max_sge.max(1));
    let max_sge = u8::try_from(max_sge).map_err(|_| Errno::INVAL)?;
    domain.ctx.core()?;
    let core = match xrc {
        None => CoreSrq::create(&domain.core, max_wr, max_sge)?,
        Some((cq, xrcd)) => {
            let cq = handle::find(cq.cast::<ibv_cq_ex>())?.core()?;
            let xrcd = &handle::find(xrcd)?.core;
            CoreSrq::create_extended(&domain.core, max_wr, max_sge, cq, xrcd)?
        }
    };
    let core = Arc::new(core);
    let id = core.id();
    let inner = Srq {
        ctx: Arc::clone(&domain.ctx),
        core,
        max_sge,
        limit: AtomicU32::new(0),
        events: Acks::default(),
    };
    let public = ibv_srq {
        // SAFETY: `pd` was found to be live.
        context: unsafe { (*pd).context },
        srq_context: init.srq_context,
        pd,
        handle: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge.into());
    let srq = handle::create(public, inner);
    domain.ctx.objects.fetch_add(1, Ordering::AcqRel);
    domain.ctx.owners.lock().srqs.insert(id, srq as usize);
    Ok(srq)
}

/// `ibv_create_srq`.
///
/// # Safety
/// `pd` must be a protection domain, and `init` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    guard(core::ptr::null_mut(), || {
        // SAFETY: null, or attributes by the caller's word.
        object(unsafe { init.as_mut() }.ok_or(Errno::INVAL).and_then(|init| create(pd, init, None)))
    })
}

/// `ibv_create_srq_ex`, in the context's table: basic queues, and those of extended reliable
/// connections.
///
/// # Safety
/// `init` must point to attributes.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    guard(core::ptr::null_mut(), || {
        object((|| {
            // SAFETY: null, or attributes by the caller's word.
            let ex = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
            let has = |bit| ex.comp_mask & bit != 0;
            let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { ex.srq_type } else { IBV_SRQT_BASIC };
            let both = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            let extended = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            let (known, xrc) = match srq_type {
                IBV_SRQT_BASIC => (both, None),
                IBV_SRQT_XRC => (both | extended, Some((ex.cq, ex.xrcd))),
                _ => return Err(Errno::UNSUPPORTED),
            };
            if ex.comp_mask & !known != 0 {
                return Err(Errno::UNSUPPORTED);
            }
            if known & !ex.comp_mask & !IBV_SRQ_INIT_ATTR_TYPE != 0 {
                return Err(Errno::INVAL);
            }
            let mut plain = ibv_srq_init_attr { srq_context: ex.srq_context, attr: ex.attr };
            let srq = create(ex.pd, &mut plain, xrc)?;
            ex.attr = plain.attr;
            Ok(srq)
        })())
    })
}

/// `ibv_get_srq_num`, in the context's table: the number by which peers of extended reliable
/// connections address a queue.
///
/// # Safety
/// `srq` must be a shared receive queue, and `number` point to 32 bits.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let found = handle::find(srq)?.core.number().ok_or(Errno::INVAL)?;
            // SAFETY: null, or 32 bits by the caller's word.
            *unsafe { number.as_mut() }.ok_or(Errno::INVAL)? = found;
            Ok(())
        })())
    })
}

/// `ibv_modify_srq`: arms the limit, and changes how many receives the queue has room for.
///
/// # Safety
/// `srq` must be a shared receive queue, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(srq)?;
            // SAFETY: null, or attributes by the caller's word.
            let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
            if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
                return Err(Errno::INVAL);
            }
            inner.ctx.core()?;
            if mask & IBV_SRQ_MAX_WR != 0 {
                inner.core.resize(attr.max_wr)?;
            }
            if mask & IBV_SRQ_LIMIT != 0 {
                inner.arm_limit(attr.srq_limit)?;
                inner.limit.store(attr.srq_limit, Ordering::Relaxed);
            }
            Ok(())
        })())
    })
}

/// `ibv_query_srq`. A limit that has fired shows as 0 once its event has been delivered.
///
/// # Safety
/// `srq` must be a shared receive queue, and `attr` point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(srq)?;
            // SAFETY: null, or attributes by the caller's word.
            let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
            *attr = ibv_srq_attr {
                max_wr: inner.core.max_wr(),
                max_sge: inner.max_sge.into(),
                srq_limit: inner.limit.load(Ordering::Relaxed),
            };
            Ok(())
        })())
    })
}

/// `ibv_destroy_srq`: `EBUSY` while QPs use it; waits until its events are acknowledged.
///
/// # Safety
/// `srq` must be a shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(srq)?;
            inner.ctx.core()?;
            inner.core.destroy()?;
            let id = inner.core.id();
            let about = |event: &Event| *event == Event::SrqLimit(id);
            inner.ctx.disown(about, |tables| _ = tables.srqs.remove(&id));
            inner.events.wait();
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(srq)
        })())
    })
}
