//! Addresses and routes: device, source and destination.

use core::ffi::c_int;
use std::net::SocketAddr;

use super::abi::*;
use super::channel::CmEvent;
use super::{addr, id, port};
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;

/// Binds an identifier to the device of an address, unless that is a wildcard.
pub(super) fn bind(id: *mut rdma_cm_id, addr: SocketAddr) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    if inner.state().src.is_some() {
        return Err(Errno::INVAL);
    }
    let number = if addr.port() == 0 { id::any_port()? } else { addr.port() };
    let mut ip = addr.ip();
    if !ip.is_unspecified() {
        let device = port::at(ip)?;
        id::attach(id, inner, port::of_device(device)?);
        ip = device.addr;
    }
    id::set_addresses(id, inner, Some(SocketAddr::new(ip, number)), None);
    Ok(())
}

/// `rdma_bind_addr`.
///
/// # Safety
/// `id` must be an identifier, `addr` a socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: an address by the caller's word.
    guard(-1, || minus_one(unsafe { addr::read(addr) }.and_then(|addr| bind(id, addr))))
}

/// Chooses the device for a destination, and queues the event.
pub(super) fn resolve(
    id: *mut rdma_cm_id,
    src: Option<SocketAddr>,
    dst: SocketAddr,
) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    let bound = inner.state().src;
    let asked = src.or(bound).filter(|src| !src.ip().is_unspecified());
    let device = match asked {
        Some(src) => port::at(src.ip())?,
        None => port::towards(dst.ip())?,
    };
    let number = match src.or(bound).map_or(0, |src| src.port()) {
        0 => id::any_port()?,
        number => number,
    };
    id::attach(id, inner, port::of_device(device)?);
    id::set_addresses(id, inner, Some(SocketAddr::new(device.addr, number)), Some(dst));
    inner.push(CmEvent::new(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
    id::complete(id)
}

/// `rdma_resolve_addr`. It completes at once: a device's addresses are those of the host.
///
/// # Safety
/// `id` must be an identifier, `src` null or a socket address, `dst` a socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            // SAFETY: null, or an address by the caller's word.
            let src = if src.is_null() { None } else { Some(unsafe { addr::read(src) }?) };
            // SAFETY: an address by the caller's word.
            resolve(id, src, unsafe { addr::read(dst) }?)
        })())
    })
}

/// `rdma_resolve_route`. IP does the routing: there is no subnet manager to query.
///
/// # Safety
/// `id` must be an identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    guard(-1, || minus_one(resolve_route(id)))
}

pub(super) fn resolve_route(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    inner.port()?;
    if inner.state().dst.is_none() {
        return Err(Errno::INVAL);
    }
    inner.push(CmEvent::new(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    id::complete(id)
}
