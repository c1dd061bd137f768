//! Event channels: descriptors to sleep on until something happens to a connection.

use core::ffi::{c_char, c_int, c_uint};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use bowline_io::EventChannel;

use super::abi::{EVENT_NAMES, RDMA_CM_EVENT_USER, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use super::id::Id;
use crate::errno::{Errno, minus_one, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::sys::Watch;

/// Most events queued in a channel.
const MAX_EVENTS: usize = 1 << 18;
/// The longest private data of any message.
const MAX_DATA: usize = 224;

/// A channel. Events in it are owned by it.
pub(crate) struct CmChannel {
    events: EventChannel<Waiting>,
    watch: Watch,
}

impl Public for rdma_event_channel {
    type Inner = Arc<CmChannel>;
    const KIND: Kind = Kind::CmChannel;
}

/// An event as the program gets it, and its private data.
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) public: rdma_cm_event,
    data: [u8; MAX_DATA],
    /// The identifier whose destruction waits for the acknowledgement.
    counted: Option<Arc<Id>>,
}

/// An undelivered event.
pub(super) struct Waiting(pub(super) Box<CmEvent>);

// SAFETY: the pointers in an event are names of objects; the thread that gets it may be any.
unsafe impl Send for Waiting {}

impl CmEvent {
    /// An event about `id`.
    pub(super) fn new(id: *mut rdma_cm_id, event: c_uint, status: c_int) -> Box<CmEvent> {
        // SAFETY: a plain C struct for which zeroes are valid.
        let mut public: rdma_cm_event = unsafe { core::mem::zeroed() };
        (public.id, public.event, public.status) = (id, event, status);
        Box::new(CmEvent { public, data: [0; MAX_DATA], counted: None })
    }

    /// Adds private data, all of which the program sees: messages do not carry its length.
    pub(super) fn with_data(mut self: Box<Self>, data: &[u8]) -> Box<CmEvent> {
        let len = data.len().min(MAX_DATA);
        self.data[..len].copy_from_slice(&data[..len]);
        // Both members of the union begin with the same two fields.
        self.public.param.conn.private_data = self.data.as_ptr().cast();
        self.public.param.conn.private_data_len = len as u8;
        self
    }
}

impl CmChannel {
    fn new() -> Result<CmChannel, Errno> {
        let made = EventChannel::new(MAX_EVENTS);
        let events = made.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)))?;
        let watch = Watch::over(events.as_raw_fd())?;
        Ok(CmChannel { events, watch })
    }

    pub(super) fn push(&self, event: Box<CmEvent>) {
        self.events.push(Waiting(event));
    }

    /// Removes the events of an identifier, and passes them to `each`.
    pub(super) fn take_about(&self, id: *mut rdma_cm_id, mut each: impl FnMut(&rdma_cm_event)) {
        self.events.retain(|waiting| {
            let event = &waiting.0.public;
            let about = event.id == id || event.listen_id == id;
            if about {
                each(event);
            }
            !about
        });
    }

    /// Moves the events of an identifier to another channel.
    pub(super) fn move_about(&self, id: *mut rdma_cm_id, to: &CmChannel) {
        let mut rest = Vec::new();
        while let Ok(Some(waiting)) = self.events.try_next() {
            let event = &waiting.0.public;
            if event.id == id || event.listen_id == id {
                to.events.push(waiting);
            } else {
                rest.push(waiting);
            }
        }
        rest.into_iter().for_each(|waiting| self.events.push(waiting));
    }

    /// The next event, waiting for it unless the descriptor is non-blocking.
    pub(super) fn next(&self) -> Result<*mut rdma_cm_event, Errno> {
        loop {
            if let Some(Waiting(mut event)) = self.events.try_next().map_err(|_| Errno::IO)? {
                let counts = if event.public.listen_id.is_null() {
                    event.public.id
                } else {
                    event.public.listen_id
                };
                if let Ok(id) = handle::find(counts) {
                    id.delivered();
                    event.counted = Some(Arc::clone(id));
                }
                return Ok(Box::into_raw(event).cast());
            }
            self.watch.wait()?;
        }
    }
}

/// Makes a channel and its object.
pub(super) fn create() -> Result<*mut rdma_event_channel, Errno> {
    let channel = Arc::new(CmChannel::new()?);
    let fd = channel.watch.as_raw_fd();
    Ok(handle::create(rdma_event_channel { fd }, channel))
}

/// `rdma_create_event_channel`.
///
/// # Safety
/// None to speak of: it is C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guard(core::ptr::null_mut(), || object(create()))
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// `channel` must come from [`rdma_create_event_channel`], and no identifier may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    guard((), || {
        let _ = handle::destroy(channel);
    });
}

/// `rdma_get_cm_event`: waits for the next event, unless the channel's descriptor is non-blocking.
///
/// # Safety
/// `channel` must come from [`rdma_create_event_channel`]; `event` must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            if event.is_null() {
                return Err(Errno::INVAL);
            }
            let next = Arc::clone(handle::find(channel)?).next()?;
            // SAFETY: not null, so a place for a pointer by the caller's word.
            unsafe { *event = next };
            Ok(())
        })())
    })
}

/// `rdma_ack_cm_event`: frees an event.
///
/// # Safety
/// `event` must come from [`rdma_get_cm_event`] and not have been acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    guard(-1, || {
        if event.is_null() {
            return minus_one(Err(Errno::INVAL));
        }
        // SAFETY: it is the first field of a boxed `CmEvent` that was handed out once.
        let event = unsafe { Box::from_raw(event.cast::<CmEvent>()) };
        if let Some(id) = &event.counted {
            id.acknowledged();
        }
        0
    })
}

/// `rdma_write_cm_event`: an event of the program's own.
///
/// # Safety
/// `id` must be an identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_uint,
    status: c_int,
    arg: u64,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(id)?;
            if event != RDMA_CM_EVENT_USER {
                return Err(Errno::INVAL);
            }
            let mut event = CmEvent::new(id, event, status);
            event.public.param.arg = arg;
            inner.push(event);
            Ok(())
        })())
    })
}

/// `rdma_event_str`.
///
/// # Safety
/// None to speak of: any number will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    EVENT_NAMES.get(event as usize).map_or(c"UNKNOWN EVENT".as_ptr(), |name| name.as_ptr())
}
