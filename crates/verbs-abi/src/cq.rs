//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bowline_device::Cq as CoreCq;
use bowline_nic::{CqId, Event, Nic, Time};

use crate::abi::*;
use crate::acks::Acks;
use crate::channel::CompChannel;
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::poll;
use crate::poll_ex::{self, Cursor};
use crate::sys::RawLock;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) ctx: Arc<Context>,
    /// Set right after construction: its events carry the address of this object.
    core: OnceLock<Arc<CoreCq>>,
    /// The service level reported for datagrams.
    pub(crate) datagram_sl: u8,
    /// Completion events that the program got.
    pub(crate) completions: Acks,
    /// Asynchronous events that the program got.
    pub(crate) events: Acks,
    /// Held from `ibv_start_poll` to `ibv_end_poll`, unless one thread alone polls the queue.
    pub(crate) polling: Option<RawLock>,
    /// The position of `ibv_start_poll` and `ibv_next_poll`.
    pub(crate) cursor: UnsafeCell<Cursor>,
}

// SAFETY: the cursor is used between `ibv_start_poll` and `ibv_end_poll` only, under the lock, or
// by the one thread that the program promised to poll with.
unsafe impl Sync for Cq {}

impl Public for ibv_cq_ex {
    type Inner = Cq;
    const KIND: Kind = Kind::Cq;
}

impl Cq {
    /// Polls for up to `wanted` completions through `take`, which gets the queue and the remaining
    /// space. Polling drives the device.
    #[inline]
    pub(crate) fn poll(
        &self,
        wanted: usize,
        take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        self.core()?.poll(wanted, take)
    }

    /// The device's queue, if this process opened the device.
    #[inline]
    pub(crate) fn core(&self) -> Result<&Arc<CoreCq>, Errno> {
        self.ctx.core()?;
        self.core.get().ok_or(Errno::INVAL)
    }
}

/// What a queue is made with.
struct CqRequest {
    depth: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    single_threaded: bool,
}

fn create(context: *mut ibv_context, request: &CqRequest) -> Result<*mut ibv_cq_ex, Errno> {
    let ctx = context::find(context)?;
    // SAFETY: `context` was found to be live.
    let vectors = unsafe { (*context).num_comp_vectors };
    if request.vector >= vectors as u32 {
        return Err(Errno::INVAL);
    }
    let channel: Option<&CompChannel> =
        if request.channel.is_null() { None } else { Some(handle::find(request.channel)?) };
    let device = ctx.core()?;
    let inner = Cq {
        ctx: Arc::clone(ctx),
        core: OnceLock::new(),
        datagram_sl: poll::datagram_sl(ctx.device.addr),
        completions: Acks::default(),
        events: Acks::default(),
        polling: (!request.single_threaded).then(RawLock::new),
        cursor: UnsafeCell::new(Cursor::default()),
    };
    let public = poll_ex::public(ibv_cq {
        context,
        channel: request.channel,
        cq_context: request.cq_context,
        handle: 0,
        cqe: request.depth as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    });
    let cq = handle::create(public, inner);
    let notify = channel.map(|channel| (Arc::clone(&channel.events), cq as u64));
    let core = match CoreCq::create(device, request.depth, notify) {
        Ok(core) => Arc::new(core),
        Err(error) => {
            handle::destroy(cq)?;
            return Err(error.into());
        }
    };
    ctx.objects.fetch_add(1, Ordering::AcqRel);
    ctx.owners.lock().cqs.insert(core.id(), cq as usize);
    // SAFETY: made above.
    let inner = unsafe { handle::inner(cq) }?;
    // The queue is not shared yet.
    let _ = inner.core.set(core);
    if let Some(channel) = channel {
        channel.join(request.channel);
    }
    Ok(cq)
}

/// `ibv_create_cq`.
///
/// # Safety
/// `context` must be an open device's, and `channel` null or one of its channels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let depth = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
            let vector = u32::try_from(comp_vector).map_err(|_| Errno::INVAL)?;
            let request = CqRequest { depth, cq_context, channel, vector, single_threaded: false };
            create(context, &request).map(<*mut ibv_cq_ex>::cast)
        })())
    })
}

/// `ibv_create_cq_ex`, in the context's table.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard(core::ptr::null_mut(), || {
        object((|| {
            if attr.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: not null, so attributes by the caller's word.
            let attr = unsafe { &*attr };
            let flags =
                if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
            let columns = IBV_WC_STANDARD_FLAGS
                | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
                | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
            // A parent domain only describes locking, which changes nothing here.
            let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
            if attr.comp_mask & !known != 0
                || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
                || attr.wc_flags & !columns != 0
            {
                return Err(Errno::UNSUPPORTED);
            }
            let request = CqRequest {
                depth: attr.cqe,
                cq_context: attr.cq_context,
                channel: attr.channel,
                vector: attr.comp_vector,
                single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            };
            create(context, &request)
        })())
    })
}

/// `ibv_destroy_cq`: `EBUSY` while QPs use it; waits until its events are acknowledged.
///
/// # Safety
/// `cq` must be a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let cq = cq.cast::<ibv_cq_ex>();
            let inner = handle::find(cq)?;
            let core = inner.core()?;
            core.destroy()?;
            let id = core.id();
            // SAFETY: the queue lives.
            let channel = unsafe { (*cq).cq.channel };
            if let Ok(to) = handle::find(channel) {
                to.leave(channel, cq);
            }
            let about = |event: &Event| *event == Event::CqOverflow(id);
            inner.ctx.disown(about, |tables| _ = tables.cqs.remove(&id));
            inner.completions.wait();
            inner.events.wait();
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(cq)
        })())
    })
}

/// `ibv_resize_cq`. Pending completions stay; a depth below their number is rejected.
///
/// # Safety
/// `cq` must be a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(cq.cast::<ibv_cq_ex>())?;
            let depth = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
            inner.core()?.resize(depth)?;
            // SAFETY: the queue lives; the field is ours to write.
            unsafe { (*cq).cqe = cqe };
            Ok(())
        })())
    })
}

/// `ibv_req_notify_cq`, in the context's table.
///
/// # Safety
/// `cq` must be a completion queue.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            // SAFETY: a completion queue, by the caller's word.
            let inner = unsafe { handle::inner(cq.cast::<ibv_cq_ex>()) }?;
            Ok(inner.core()?.arm(solicited_only != 0)?)
        })())
    })
}
