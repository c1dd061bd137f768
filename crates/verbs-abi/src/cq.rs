//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bowline_nic::{CqId, Event, Nic, Time};
use bowline_rails::{CqMirror, Rails};

use crate::abi::*;
use crate::acks::Acks;
use crate::channel::CompChannel;
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::poll_ex::{self, Cursor};
use crate::sys::RawLock;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) ctx: Arc<Context>,
    pub(crate) id: CqId,
    /// Its counterpart on the backup.
    mirror: OnceLock<Arc<CqMirror>>,
    /// Completion events that the program got.
    pub(crate) completions: Acks,
    /// Asynchronous events that the program got.
    pub(crate) events: Acks,
    /// Held from `ibv_start_poll` to `ibv_end_poll`, unless one thread alone polls the queue.
    pub(crate) polling: Option<RawLock>,
    /// What `ibv_start_poll` and `ibv_next_poll` are at.
    pub(crate) cursor: UnsafeCell<Cursor>,
}

// SAFETY: the cursor is used between `ibv_start_poll` and `ibv_end_poll` only, under the lock, or
// by the one thread that the program promised to poll with.
unsafe impl Sync for Cq {}

/// Takes completions of a queue, up to a number, and says how many.
type Take<'a> = dyn FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, Errno> + 'a;

impl Public for ibv_cq_ex {
    type Inner = Cq;
    const KIND: Kind = Kind::Cq;
}

impl Cq {
    /// Polls for up to `wanted` completions through `take`, which gets the queue to ask and how many
    /// there is room for. Whoever polls drives the device.
    #[inline]
    pub(crate) fn poll(
        &self,
        wanted: usize,
        mut take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let lane = self.ctx.lane()?;
        // While all connections are at home, as if there were no backup.
        match self.ctx.rails.as_ref().filter(|rails| rails.is_split()) {
            None => lane.poll(|nic, now| take(nic, now, self.id, wanted))?,
            Some(rails) => self.poll_split(rails, wanted, &mut take),
        }
    }

    /// Polls while connections are away, perhaps some of this queue's.
    #[inline(never)]
    fn poll_split(
        &self,
        rails: &Rails,
        wanted: usize,
        take: &mut Take<'_>,
    ) -> Result<usize, Errno> {
        match self.mirror.get() {
            Some(mirror) => mirror.poll(rails, wanted, take),
            None => self.ctx.lane()?.poll(|nic, now| take(nic, now, self.id, wanted))?,
        }
    }

    fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        self.ctx.lane()?;
        match (self.mirror.get(), &self.ctx.rails) {
            (Some(mirror), Some(rails)) => Ok(mirror.arm(rails, solicited_only)?),
            _ => self.ctx.control(|nic, _| nic.arm_cq(self.id, solicited_only)),
        }
    }
}

/// What a queue is made with.
struct Wish {
    depth: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    single_threaded: bool,
}

fn create(context: *mut ibv_context, wish: &Wish) -> Result<*mut ibv_cq_ex, Errno> {
    let ctx = context::find(context)?;
    // SAFETY: `context` was found to be live.
    let vectors = unsafe { (*context).num_comp_vectors };
    if wish.vector >= vectors as u32 {
        return Err(Errno::INVAL);
    }
    let channel: Option<&CompChannel> =
        if wish.channel.is_null() { None } else { Some(handle::find(wish.channel)?) };
    let id = ctx.control(|nic, _| nic.create_cq(wish.depth))?;
    let inner = Cq {
        ctx: Arc::clone(ctx),
        id,
        mirror: OnceLock::new(),
        completions: Acks::default(),
        events: Acks::default(),
        polling: (!wish.single_threaded).then(RawLock::new),
        cursor: UnsafeCell::new(Cursor::default()),
    };
    let public = poll_ex::public(ibv_cq {
        context,
        channel: wish.channel,
        cq_context: wish.cq_context,
        handle: 0,
        cqe: wish.depth as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    });
    let cq = handle::create(public, inner);
    ctx.objects.fetch_add(1, Ordering::AcqRel);
    ctx.owners.lock().cqs.insert(id, cq as usize);
    if let Some(channel) = channel {
        channel.join(wish.channel);
        ctx.lane()?.notify_cq(id, Arc::clone(&channel.events), cq as u64)?;
    }
    let notify = channel.map(|channel| (Arc::clone(&channel.events), cq as u64));
    let mirror = ctx.shadow("completion queue", |rails| rails.shadow_cq(id, wish.depth, notify));
    // SAFETY: made above.
    let inner = unsafe { handle::inner(cq) }?;
    if let Some(mirror) = mirror {
        // Nobody else has the queue yet.
        let _ = inner.mirror.set(mirror);
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
            let wish = Wish { depth, cq_context, channel, vector, single_threaded: false };
            create(context, &wish).map(<*mut ibv_cq_ex>::cast)
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
            if attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
                || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
                || attr.wc_flags & !columns != 0
            {
                return Err(Errno::UNSUPPORTED);
            }
            let wish = Wish {
                depth: attr.cqe,
                cq_context: attr.cq_context,
                channel: attr.channel,
                vector: attr.comp_vector,
                single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            };
            create(context, &wish)
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
            inner.ctx.control(|nic, _| nic.destroy_cq(inner.id))?;
            inner.ctx.lane()?.forget_cq(inner.id)?;
            if let Some(mirror) = inner.mirror.get() {
                inner.ctx.forget("completion queue", |rails| rails.forget_cq(mirror));
            }
            // SAFETY: the queue lives.
            let channel = unsafe { (*cq).cq.channel };
            if let Ok(to) = handle::find(channel) {
                to.leave(channel, cq);
            }
            let about = |event: &Event| *event == Event::CqOverflow(inner.id);
            inner.ctx.disown(about, |tables| _ = tables.cqs.remove(&inner.id));
            inner.completions.wait();
            inner.events.wait();
            inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
            handle::destroy(cq)
        })())
    })
}

/// `ibv_resize_cq`: queues keep their size.
///
/// # Safety
/// `cq` must be a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(_cq: *mut ibv_cq, _cqe: c_int) -> c_int {
    code(Err(Errno::UNSUPPORTED))
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
            inner.arm(solicited_only != 0)
        })())
    })
}
