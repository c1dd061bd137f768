//! Multicast groups of identifiers: an IP address to join, an address handle to send to.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;

use super::abi::*;
use super::channel::CmEvent;
use super::{addr, id};
use crate::abi::*;
use crate::context::PORT;
use crate::errno::{Errno, minus_one};
use crate::gid;
use crate::guard::guard;
use crate::handle;
use crate::mcast::{ibv_attach_mcast, ibv_detach_mcast};

/// The QP number of every multicast datagram.
const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// Whether a member only sends.
fn only_sends(flags: u32) -> bool {
    flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
}

/// Joins a group, and reports its address. IP does the rest: nobody has to be asked.
fn join(
    id: *mut rdma_cm_id,
    group: IpAddr,
    receives: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    let port = inner.port()?;
    let same_family = group.is_ipv4() == port.device.addr.is_ipv4();
    if !group.is_multicast() || !same_family {
        return Err(Errno::INVAL);
    }
    if inner.state().groups.contains(&group) {
        return Err(Errno(libc::EADDRINUSE));
    }
    let gid = gid::of_addr(group);
    // SAFETY: the identifier lives, and its QP.
    let error = unsafe {
        match (*id).qp {
            qp if receives && !qp.is_null() => ibv_attach_mcast(qp, &raw const gid, 0),
            _ => 0,
        }
    };
    if error != 0 {
        return Err(Errno(error));
    }
    inner.state().groups.push(group);
    let mut event = CmEvent::new(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
    let mut ah_attr = ibv_ah_attr { is_global: 1, port_num: PORT, ..Default::default() };
    (ah_attr.grh.dgid, ah_attr.grh.hop_limit) = (gid, 1);
    event.public.param.ud = rdma_ud_param {
        // In place of other events' data, this one carries the context of the program's request.
        private_data: context,
        private_data_len: 0,
        ah_attr,
        qp_num: MULTICAST_QPN,
        qkey: RDMA_UDP_QKEY,
    };
    inner.push(event);
    id::complete(id)
}

/// Leaves a group.
fn leave(id: *mut rdma_cm_id, group: IpAddr) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    {
        let mut state = inner.state();
        let at = state.groups.iter().position(|other| *other == group);
        state.groups.swap_remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?);
    }
    let gid = gid::of_addr(group);
    // SAFETY: the identifier lives, and its QP. One that only sends is in no group.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_detach_mcast((*id).qp, &raw const gid, 0);
        }
    }
    Ok(())
}

/// `rdma_join_multicast`.
///
/// # Safety
/// `id` must be an identifier with a device, `group` a socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    group: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    guard(-1, || {
        // SAFETY: an address by the caller's word.
        let group = unsafe { addr::read(group) };
        minus_one(group.and_then(|group| join(id, group.ip(), true, context)))
    })
}

/// `rdma_join_multicast_ex`.
///
/// # Safety
/// `id` must be an identifier with a device, `attr` attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            // SAFETY: null, or attributes by the caller's word.
            let asked = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
            let both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
            if asked.comp_mask != both {
                return Err(Errno::INVAL);
            }
            // SAFETY: an address by the caller's word.
            let group = unsafe { addr::read(asked.addr) }?;
            join(id, group.ip(), !only_sends(asked.join_flags), context)
        })())
    })
}

/// `rdma_leave_multicast`.
///
/// # Safety
/// `id` must be an identifier, `group` a socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    group: *mut libc::sockaddr,
) -> c_int {
    guard(-1, || {
        // SAFETY: an address by the caller's word.
        let group = unsafe { addr::read(group) };
        minus_one(group.and_then(|group| leave(id, group.ip())))
    })
}
