//! Completion channels: descriptors to sleep on until a completion queue has entries.

use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_io::EventChannel;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};
use crate::context::{self, Context};
use crate::errno::{Errno, code, minus_one, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::sys::Watch;

/// Most events queued in a channel. A queue adds one each time it is armed and gets an entry.
const MAX_EVENTS: usize = 1 << 20;

/// A completion channel. Its events are the addresses of completion queues.
pub(crate) struct CompChannel {
    ctx: Arc<Context>,
    pub(crate) events: Arc<EventChannel<u64>>,
    /// The descriptor that programs see.
    watch: Watch,
    /// Completion queues that report here.
    users: AtomicU32,
    /// Held while an event is taken and counted, and while a queue is removed.
    gate: Mutex<()>,
}

impl Public for ibv_comp_channel {
    type Inner = CompChannel;
    const KIND: Kind = Kind::Channel;
}

impl CompChannel {
    /// A completion queue starts to report here.
    pub(crate) fn join(&self, channel: *mut ibv_comp_channel) {
        let users = self.users.fetch_add(1, Ordering::AcqRel) + 1;
        // SAFETY: the channel lives; the field is ours to write.
        unsafe { (*channel).refcnt = users as c_int };
    }

    /// A completion queue is destroyed: its undelivered events are dropped.
    pub(crate) fn leave(&self, channel: *mut ibv_comp_channel, cq: *mut ibv_cq_ex) {
        let _gate = self.gate();
        self.events.retain(|&token| token != cq as u64);
        let users = self.users.fetch_sub(1, Ordering::AcqRel) - 1;
        // SAFETY: the channel lives; the field is ours to write.
        unsafe { (*channel).refcnt = users as c_int };
    }

    fn gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue that the next event is about, counted as delivered; `None` if there is none.
    fn next(&self) -> Result<Option<*mut ibv_cq_ex>, Errno> {
        self.ctx.core()?;
        let _gate = self.gate();
        loop {
            let Some(token) = self.events.try_next().map_err(|_| Errno::IO)? else {
                return Ok(None);
            };
            let cq = token as usize as *mut ibv_cq_ex;
            if let Ok(inner) = handle::find(cq) {
                inner.completions.deliver();
                return Ok(Some(cq));
            }
        }
    }
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    guard(core::ptr::null_mut(), || {
        object((|| {
            let ctx = context::find(context)?;
            ctx.core()?;
            let events = EventChannel::new(MAX_EVENTS)
                .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)))?;
            let watch = Watch::over(events.as_raw_fd())?;
            let fd = watch.as_raw_fd();
            ctx.objects.fetch_add(1, Ordering::AcqRel);
            let inner = CompChannel {
                ctx: Arc::clone(ctx),
                events: Arc::new(events),
                watch,
                users: AtomicU32::new(0),
                gate: Mutex::new(()),
            };
            Ok(handle::create(ibv_comp_channel { context, fd, refcnt: 0 }, inner))
        })())
    })
}

/// `ibv_destroy_comp_channel`; `EBUSY` while completion queues report to it.
///
/// # Safety
/// `channel` must come from [`ibv_create_comp_channel`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let inner = handle::find(channel)?;
            if inner.users.load(Ordering::Acquire) > 0 {
                return Err(Errno::BUSY);
            }
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(channel)
        })())
    })
}

/// `ibv_get_cq_event`: waits for the next event, unless the channel's descriptor is non-blocking.
///
/// # Safety
/// `channel` must come from [`ibv_create_comp_channel`]; the others must point to pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(channel)?;
            if cq.is_null() || cq_context.is_null() {
                return Err(Errno::INVAL);
            }
            loop {
                if let Some(found) = inner.next()? {
                    let found = found.cast::<ibv_cq>();
                    // SAFETY: neither is null, and the queue lives until its event is acknowledged.
                    unsafe {
                        *cq = found;
                        *cq_context = (*found).cq_context;
                    }
                    return Ok(());
                }
                inner.ctx.core()?.stop_polling();
                inner.watch.wait()?;
            }
        })())
    })
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` must be a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    guard((), || {
        if let Ok(inner) = handle::find(cq.cast::<ibv_cq_ex>()) {
            let acknowledged = inner.completions.acknowledge(events);
            // SAFETY: the object lives; the field is ours to write.
            unsafe { (*cq).comp_events_completed = acknowledged };
        }
    });
}
