//! The thread of a context that takes its events.

use core::ffi::c_void;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bowline_io::{EventChannel, EventSink, spawn_background};
use bowline_nic::{CqId, Event, PdId, SrqId};
use bowline_verbs_types::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED,
    IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_element, ibv_async_event, ibv_comp_channel, ibv_context,
    ibv_cq,
};
use bowline_wire::Qpn;

use crate::VerbsError;
use crate::library::Library;

/// Whom events concern, by the address of the verbs object. An object leaves before it is
/// destroyed, so that no address means two.
pub(crate) struct Watched {
    events: Arc<EventChannel<Event>>,
    objects: Mutex<Objects>,
}

#[derive(Default)]
struct Objects {
    qps: HashMap<usize, Qpn>,
    cqs: HashMap<usize, WatchedCq>,
    srqs: HashMap<usize, SrqId>,
    /// For identifiers of domains, completion queues and shared receive queues.
    made: u32,
}

struct WatchedCq {
    id: CqId,
    /// Where its completion events go, and under which token.
    notify: Option<(Arc<EventChannel<u64>>, u64)>,
}

impl Watched {
    pub(crate) fn new(events: Arc<EventChannel<Event>>) -> Watched {
        Watched { events, objects: Mutex::default() }
    }

    pub(crate) fn add_qp<T>(&self, qp: *mut T, qpn: Qpn) {
        self.lock().qps.insert(qp as usize, qpn);
    }

    pub(crate) fn remove_qp<T>(&self, qp: *mut T) {
        self.lock().qps.remove(&(qp as usize));
    }

    pub(crate) fn add_cq<T>(
        &self,
        cq: *mut T,
        notify: Option<(Arc<EventChannel<u64>>, u64)>,
    ) -> CqId {
        let mut objects = self.lock();
        objects.made += 1;
        let id = CqId::from_raw(objects.made);
        objects.cqs.insert(cq as usize, WatchedCq { id, notify });
        id
    }

    pub(crate) fn remove_cq<T>(&self, cq: *mut T) {
        self.lock().cqs.remove(&(cq as usize));
    }

    /// An identifier for a protection domain.
    pub(crate) fn next_pd(&self) -> PdId {
        let mut objects = self.lock();
        objects.made += 1;
        PdId::from_raw(objects.made)
    }

    pub(crate) fn add_srq<T>(&self, srq: *mut T) -> SrqId {
        let mut objects = self.lock();
        objects.made += 1;
        let id = SrqId::from_raw(objects.made);
        objects.srqs.insert(srq as usize, id);
        id
    }

    pub(crate) fn remove_srq<T>(&self, srq: *mut T) {
        self.lock().srqs.remove(&(srq as usize));
    }

    /// A completion queue has what it was armed for.
    fn completed(&self, cq: *mut ibv_cq) {
        let notify = self.lock().cqs.get(&(cq as usize)).and_then(|cq| cq.notify.clone());
        if let Some((channel, token)) = notify {
            channel.push(token);
        }
    }

    fn happened(&self, event_type: u32, element: ibv_async_element) {
        if event_type == IBV_EVENT_DEVICE_FATAL {
            self.events.closed();
            return;
        }
        if let Some(event) = self.translate(event_type, element) {
            self.events.push(event);
        }
    }

    fn translate(&self, event_type: u32, element: ibv_async_element) -> Option<Event> {
        let objects = self.lock();
        // SAFETY: every member of the union is a number or an address of at most this size; it is
        // only compared.
        let address = unsafe { element.qp } as usize;
        let qp = |event: fn(Qpn) -> Event| objects.qps.get(&address).map(|qpn| event(*qpn));
        match event_type {
            IBV_EVENT_CQ_ERR => objects.cqs.get(&address).map(|cq| Event::CqOverflow(cq.id)),
            IBV_EVENT_SRQ_LIMIT_REACHED => {
                objects.srqs.get(&address).map(|id| Event::SrqLimit(*id))
            }
            IBV_EVENT_QP_FATAL => qp(Event::QpFatal),
            IBV_EVENT_QP_REQ_ERR => qp(Event::QpRequestError),
            IBV_EVENT_QP_ACCESS_ERR => qp(Event::QpAccessError),
            IBV_EVENT_COMM_EST => qp(Event::CommEstablished),
            IBV_EVENT_SQ_DRAINED => qp(Event::SqDrained),
            IBV_EVENT_QP_LAST_WQE_REACHED => qp(Event::LastWqeReached),
            // Ports, paths and partitions: Bowline has no events for them.
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread; it ends when this is dropped.
pub(crate) struct Watcher {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// What the thread calls. Whoever drops the [`Watcher`] keeps both alive until then.
struct Sources {
    library: &'static Library,
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Sources {}

impl Watcher {
    pub(crate) fn start(
        library: &'static Library,
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        watched: Arc<Watched>,
    ) -> Result<Watcher, VerbsError> {
        // SAFETY: touches no memory of ours.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if stop < 0 {
            return Err(VerbsError::last("make an event descriptor"));
        }
        // SAFETY: just opened, and nobody else's.
        let stop = unsafe { OwnedFd::from_raw_fd(stop) };
        // SAFETY: both are alive, and have their descriptors in these fields.
        let (completions, events) = unsafe { ((*channel).fd, (*context).async_fd) };
        set_nonblocking(completions)?;
        set_nonblocking(events)?;
        let sources = Sources { library, context, channel };
        let fds = [stop.as_raw_fd(), completions, events];
        let thread = spawn_background("bowline-verbs", move || sources.serve(fds, &watched));
        let thread = thread
            .map_err(|source| VerbsError::Refused { what: "start a thread for events", source })?;
        Ok(Watcher { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: writes eight bytes of ours to a descriptor of ours.
        let _ =
            unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast::<c_void>(), one.len()) };
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Sources {
    fn serve(self, fds: [RawFd; 3], watched: &Watched) {
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        loop {
            // SAFETY: three entries of ours.
            let ready =
                unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
            if ready < 0 {
                // Interrupted, or a kernel out of memory: look again a little later.
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            }
            let [stop, completions, events] = polled.map(|entry| entry.revents);
            if stop != 0 {
                return;
            }
            if completions & libc::POLLIN != 0 {
                self.take_completions(watched);
            }
            if events & libc::POLLIN != 0 {
                self.take_events(watched);
            }
            // A descriptor whose other end is gone says so at once and for ever.
            for entry in &mut polled[1..] {
                if entry.revents & libc::POLLIN == 0 && entry.revents != 0 {
                    entry.fd = -1;
                }
            }
        }
    }

    fn take_completions(&self, watched: &Watched) {
        let (mut cq, mut tag) = (null_mut(), null_mut());
        // SAFETY: the channel lives until this thread has ended; it does not block.
        while unsafe { (self.library.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut tag) }
            == 0
        {
            watched.completed(cq);
            // SAFETY: a queue cannot be destroyed before its events are acknowledged.
            unsafe { (self.library.ibv_ack_cq_events)(cq, 1) };
        }
    }

    fn take_events(&self, watched: &Watched) {
        let element = ibv_async_element { qp: null_mut() };
        let mut event = ibv_async_event { element, event_type: 0 };
        // SAFETY: the context lives until this thread has ended; it does not block.
        while unsafe { (self.library.ibv_get_async_event)(self.context, &raw mut event) } == 0 {
            watched.happened(event.event_type, event.element);
            // SAFETY: an event that was just taken, acknowledged once.
            unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        }
    }
}

fn set_nonblocking(fd: RawFd) -> Result<(), VerbsError> {
    // SAFETY: neither touches memory.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(VerbsError::last("prepare an event descriptor")) }
}
