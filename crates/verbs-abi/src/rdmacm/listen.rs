//! Listening.

use core::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;

use super::abi::*;
use super::connect::service_of;
use super::port::{self, Name, Port};
use super::{channel, id, qp};
use crate::device;
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;

/// The backlog of a program that asks for none.
const DEFAULT_BACKLOG: usize = 1024;

/// The ports that listen for an address: one, or all of its family.
fn ports_of(addr: IpAddr) -> Result<Vec<Arc<Port>>, Errno> {
    if !addr.is_unspecified() {
        return Ok(vec![port::of_device(port::at(addr)?)?]);
    }
    // An IPv6 wildcard also listens for IPv4, as sockets do.
    let heard = device::all().iter().filter(|d| addr.is_ipv6() || d.addr.is_ipv4());
    let ports: Vec<Arc<Port>> = heard.filter_map(|d| port::of_device(d).ok()).collect();
    if ports.is_empty() { Err(Errno(libc::ENODEV)) } else { Ok(ports) }
}

fn listen(id: *mut rdma_cm_id, backlog: c_int) -> Result<(), Errno> {
    let inner = Arc::clone(handle::find(id)?);
    let src = inner.state().src.ok_or(Errno::INVAL)?;
    if !inner.state().listens.is_empty() {
        return Err(Errno::INVAL);
    }
    let service = service_of(id, src.port());
    let backlog = usize::try_from(backlog).ok().filter(|n| *n > 0).unwrap_or(DEFAULT_BACKLOG);
    for port in ports_of(src.ip())? {
        let mut tables = port.tables();
        if !port.connections.listen(service, backlog)? {
            drop(tables);
            for (port, service) in core::mem::take(&mut inner.state().listens) {
                let _ = port.connections.unlisten(service);
                port.tables().listeners.remove(&service);
            }
            return Err(Errno(libc::EADDRINUSE));
        }
        tables.listeners.insert(service, Name(id));
        drop(tables);
        inner.state().listens.push((port, service));
    }
    Ok(())
}

/// `rdma_listen`.
///
/// # Safety
/// `id` must be a bound identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    guard(-1, || minus_one(listen(id, backlog)))
}

/// `rdma_get_request`: waits for a request at a synchronous listener.
///
/// # Safety
/// `listener` must be an identifier that listens; `id` must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = Arc::clone(handle::find(listener)?);
            if id.is_null() || inner.state().sync.is_none() {
                return Err(Errno::INVAL);
            }
            let made = next_request(&inner)?;
            // SAFETY: not null, so a place for a pointer by the caller's word.
            unsafe { *id = made };
            Ok(())
        })())
    })
}

fn next_request(inner: &id::Id) -> Result<*mut rdma_cm_id, Errno> {
    let waits = Arc::clone(&inner.state().channel);
    let event = waits.next()?;
    // SAFETY: an event that was just handed out.
    let (made, kind, status) = unsafe { ((*event).id, (*event).event, (*event).status) };
    if status != 0 || kind != RDMA_CM_EVENT_CONNECT_REQUEST {
        // SAFETY: as above; it is acknowledged once.
        unsafe { channel::rdma_ack_cm_event(event) };
        return Err(Errno(if status == 0 { libc::EINVAL } else { status.abs() }));
    }
    let ready = id::migrate(made, core::ptr::null_mut()).and_then(|()| {
        let wanted = inner.state().qp_init.as_ref().map(|(pd, init)| (*pd, qp::copy(init)));
        match wanted {
            Some((pd, mut init)) => qp::create(made, pd.0, &mut init, None),
            None => Ok(()),
        }
    });
    // SAFETY: the new identifier lives, and its event is the program's to look at. The listener's
    // acknowledgement comes with it.
    unsafe { (*made).event = event };
    if let Err(error) = ready {
        let _ = id::destroy(made);
        return Err(error);
    }
    Ok(made)
}
