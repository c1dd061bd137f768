//! `rdma_getaddrinfo`: resolves names to addresses.

use core::ffi::{c_char, c_int, c_uint};
use core::ptr::null_mut;
use std::net::SocketAddr;

use super::abi::*;
use super::channel::CmEvent;
use super::port::Name;
use super::{addr, id};
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::handle;

/// One result, and the addresses that it points to.
#[repr(C)]
struct Entry {
    public: rdma_addrinfo,
    src: libc::sockaddr_storage,
    dst: libc::sockaddr_storage,
}

/// The first address that the resolver returns.
///
/// # Safety
/// Both must be null or C strings.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    flags: c_int,
    family: c_int,
) -> Result<SocketAddr, Errno> {
    // SAFETY: a plain C struct for which zeroes are valid.
    let mut hints: libc::addrinfo = unsafe { core::mem::zeroed() };
    hints.ai_family = family;
    hints.ai_socktype = libc::SOCK_STREAM;
    if flags & RAI_PASSIVE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut found = null_mut();
    // SAFETY: names by the caller's word; `found` is freed below.
    if unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut found) } != 0 {
        return Err(Errno(libc::ENODATA));
    }
    // SAFETY: a successful look-up gives at least one entry with an address of its family.
    let first = unsafe { addr::read((*found).ai_addr) };
    // SAFETY: it came from `getaddrinfo`.
    unsafe { libc::freeaddrinfo(found) };
    first
}

/// Port space and QP type that hints ask for.
fn kind_of(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let (ps, qp_type) = hints.map_or((0, 0), |h| (h.ai_port_space, h.ai_qp_type));
    let (tcp, udp) = (RDMA_PS_TCP as c_int, RDMA_PS_UDP as c_int);
    match (ps, qp_type as c_uint) {
        (0, IBV_QPT_UD) => (udp, qp_type),
        (0, 0) => (tcp, IBV_QPT_RC as c_int),
        (0, _) => (tcp, qp_type),
        (ps, 0) if ps == udp => (ps, IBV_QPT_UD as c_int),
        (ps, 0) => (ps, IBV_QPT_RC as c_int),
        given => (given.0, qp_type),
    }
}

/// One result for a name.
///
/// # Safety
/// As for [`rdma_getaddrinfo`].
unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, Errno> {
    // SAFETY: null, or hints by the caller's word.
    let hints = unsafe { hints.as_ref() };
    let read = |at: *mut libc::sockaddr| match at.is_null() {
        true => Ok(None),
        // SAFETY: an address by the caller's word.
        false => unsafe { addr::read(at) }.map(Some),
    };
    let source = hints.map_or(Ok(None), |hints| read(hints.ai_src_addr));
    if node.is_null() && service.is_null() {
        // Without a name only the hints count.
        let dst = read(hints.ok_or(Errno::INVAL)?.ai_dst_addr);
        return Ok(make(hints, source?, dst?));
    }
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let family = hints.map_or(0, |hints| hints.ai_family);
    // SAFETY: names by the caller's word.
    let found = unsafe { look_up(node, service, flags, family) }?;
    Ok(if flags & RAI_PASSIVE != 0 {
        make(hints, Some(found), None)
    } else {
        make(hints, source?, Some(found))
    })
}

/// `rdma_getaddrinfo`.
///
/// # Safety
/// `node` and `service` must be null or C strings, `hints` null or hints, `res` a place for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            if res.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: by the caller's word; `res` is not null, so a place for a pointer.
            unsafe { *res = get(node, service, hints)? };
            Ok(())
        })())
    })
}

fn make(
    hints: Option<&rdma_addrinfo>,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
) -> *mut rdma_addrinfo {
    // SAFETY: plain C structs for which zeroes are valid.
    let mut entry: Box<Entry> = Box::new(unsafe { core::mem::zeroed() });
    let v6 = src.or(dst).is_some_and(|addr| addr.is_ipv6());
    entry.public.ai_flags = hints.map_or(0, |hints| hints.ai_flags);
    entry.public.ai_family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    (entry.public.ai_port_space, entry.public.ai_qp_type) = kind_of(hints);
    if let Some(src) = src {
        entry.src = addr::write(src);
        entry.public.ai_src_len = addr::len(src);
        entry.public.ai_src_addr = (&raw mut entry.src).cast();
    }
    if let Some(dst) = dst {
        entry.dst = addr::write(dst);
        entry.public.ai_dst_len = addr::len(dst);
        entry.public.ai_dst_addr = (&raw mut entry.dst).cast();
    }
    Box::into_raw(entry).cast()
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// `res` must be null or come from [`rdma_getaddrinfo`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    if !res.is_null() {
        // SAFETY: the first field of an `Entry` that was boxed; there is one of them.
        drop(unsafe { Box::from_raw(res.cast::<Entry>()) });
    }
}

/// `rdma_resolve_addrinfo`: stores the result for [`rdma_query_addrinfo`], and queues an event.
///
/// # Safety
/// `id` must be an identifier; the others as for [`rdma_getaddrinfo`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(id)?;
            if inner.state().resolved.is_some() {
                return Err(Errno(libc::EBUSY));
            }
            // SAFETY: null, or hints by the caller's word.
            if unsafe { hints.as_ref() }.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
                // There is no subnet administrator to query.
                return Err(Errno(libc::ENOTSUP));
            }
            // SAFETY: by the caller's word.
            let found = unsafe { get(node, service, hints) }?;
            inner.state().resolved = Some(Name(found));
            inner.push(CmEvent::new(id, RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0));
            id::complete(id)
        })())
    })
}

/// `rdma_query_addrinfo`: the result of [`rdma_resolve_addrinfo`], which the program must free.
///
/// # Safety
/// `id` must be an identifier, `info` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(id)?;
            if info.is_null() {
                return Err(Errno::INVAL);
            }
            let found = inner.state().resolved.take().ok_or(Errno(libc::ENOENT))?;
            // SAFETY: not null, so a place for a pointer by the caller's word.
            unsafe { *info = found.0 };
            Ok(())
        })())
    })
}
