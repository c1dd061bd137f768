//! Asynchronous events: what happens to objects outside the flow of completions.

use core::ffi::{c_int, c_uint};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_io::ChannelClosed;
use bowline_nic::{CqId, Event, SrqId};
use bowline_wire::Qpn;

use crate::abi::*;
use crate::context::{self, Context, PORT};
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;
use crate::qp::Qp;

/// Maps the NIC's objects to the addresses of the program's objects.
#[derive(Default)]
pub(crate) struct Owners {
    tables: Mutex<Tables>,
}

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) qps: HashMap<u32, usize>,
    pub(crate) cqs: HashMap<CqId, usize>,
    pub(crate) srqs: HashMap<SrqId, usize>,
}

impl Owners {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Removes an object and its undelivered events.
    pub(crate) fn disown(
        &self,
        is_about: impl Fn(&Event) -> bool,
        remove: impl FnOnce(&mut Tables),
    ) {
        let mut tables = self.owners.lock();
        remove(&mut tables);
        if let Ok(core) = self.core() {
            core.events().retain(|event| !is_about(event));
        }
    }

    /// Calls the queue pair with this number. A concurrent call to destroy it waits.
    pub(crate) fn with_qp<R>(
        &self,
        qpn: Qpn,
        call: impl FnOnce(&Qp) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let tables = self.owners.lock();
        let qp = *tables.qps.get(&qpn.get()).ok_or(Errno::INVAL)? as *mut ibv_qp_ex;
        call(handle::find(qp)?)
    }

    /// The next event, counted as delivered; `None` if there is none.
    fn next_event(&self) -> Result<Option<ibv_async_event>, Errno> {
        // Under this lock, so that no object is destroyed between lookup and counting.
        let tables = self.owners.lock();
        loop {
            match self.core()?.events().try_next() {
                Ok(Some(event)) => {
                    if let Some(event) = deliver(&tables, event) {
                        return Ok(Some(event));
                    }
                }
                Ok(None) => return Ok(None),
                Err(ChannelClosed) => {
                    if self.told_fatal.swap(true, Ordering::Relaxed) {
                        return Err(Errno::IO);
                    }
                    let element = ibv_async_element { port_num: c_int::from(PORT) };
                    let event_type = IBV_EVENT_DEVICE_FATAL;
                    return Ok(Some(ibv_async_event { element, event_type }));
                }
            }
        }
    }
}

/// An event in the program's form, counted as delivered; `None` if its object is gone.
fn deliver(tables: &Tables, event: Event) -> Option<ibv_async_event> {
    let of_qp = |qpn: bowline_wire::Qpn, event_type: c_uint| {
        let qp = *tables.qps.get(&qpn.get())? as *mut ibv_qp_ex;
        handle::find(qp).ok()?.events.deliver();
        Some(ibv_async_event { element: ibv_async_element { qp: qp.cast() }, event_type })
    };
    match event {
        // Those that guard or watch QPs are notified elsewhere.
        Event::CqNotify(_) | Event::PathFailed(_) | Event::PeerLost(_) => None,
        Event::CqOverflow(cq) => {
            let cq = *tables.cqs.get(&cq)? as *mut ibv_cq_ex;
            handle::find(cq).ok()?.events.deliver();
            let element = ibv_async_element { cq: cq.cast() };
            Some(ibv_async_event { element, event_type: IBV_EVENT_CQ_ERR })
        }
        Event::SrqLimit(srq) => {
            let srq = *tables.srqs.get(&srq)? as *mut ibv_srq;
            let inner = handle::find(srq).ok()?;
            inner.events.deliver();
            inner.limit_reached();
            let element = ibv_async_element { srq };
            Some(ibv_async_event { element, event_type: IBV_EVENT_SRQ_LIMIT_REACHED })
        }
        Event::CommEstablished(qpn) => of_qp(qpn, IBV_EVENT_COMM_EST),
        Event::SqDrained(qpn) => of_qp(qpn, IBV_EVENT_SQ_DRAINED),
        Event::QpFatal(qpn) => of_qp(qpn, IBV_EVENT_QP_FATAL),
        Event::QpRequestError(qpn) => of_qp(qpn, IBV_EVENT_QP_REQ_ERR),
        Event::QpAccessError(qpn) => of_qp(qpn, IBV_EVENT_QP_ACCESS_ERR),
        Event::LastWqeReached(qpn) => of_qp(qpn, IBV_EVENT_QP_LAST_WQE_REACHED),
    }
}

/// `ibv_get_async_event`: waits for the next event, unless `async_fd` is non-blocking.
///
/// # Safety
/// `context` must be an open device's, and `event` point to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let ctx = context::find(context)?;
            if event.is_null() {
                return Err(Errno::INVAL);
            }
            loop {
                if let Some(next) = ctx.next_event()? {
                    // SAFETY: not null, so an event by the caller's word.
                    unsafe { event.write(next) };
                    return Ok(());
                }
                ctx.core()?;
                ctx.watch.wait()?;
            }
        })())
    })
}

/// `ibv_ack_async_event`: the event's object may be destroyed as far as this event is concerned.
///
/// # Safety
/// `event` must be one that [`ibv_get_async_event`] filled in, of an object not destroyed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guard((), || {
        if event.is_null() {
            return;
        }
        // SAFETY: an event that was filled in, by the caller's word.
        let event = unsafe { &*event };
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                // SAFETY: events of this type are about a CQ.
                let cq = unsafe { event.element.cq };
                if let Ok(inner) = handle::find(cq.cast::<ibv_cq_ex>()) {
                    let acknowledged = inner.events.acknowledge(1);
                    // SAFETY: the object lives; the field is ours to write.
                    unsafe { (*cq).async_events_completed = acknowledged };
                }
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: events of these types are about an SRQ.
                let srq = unsafe { event.element.srq };
                if let Ok(inner) = handle::find(srq) {
                    let acknowledged = inner.events.acknowledge(1);
                    // SAFETY: the object lives; the field is ours to write.
                    unsafe { (*srq).events_completed = acknowledged };
                }
            }
            IBV_EVENT_DEVICE_FATAL => {}
            _ => {
                // SAFETY: all other events that we deliver are about a QP.
                let qp = unsafe { event.element.qp };
                if let Ok(inner) = handle::find(qp.cast::<ibv_qp_ex>()) {
                    let acknowledged = inner.events.acknowledge(1);
                    // SAFETY: the object lives; the field is ours to write.
                    unsafe { (*qp).events_completed = acknowledged };
                }
            }
        }
    });
}
