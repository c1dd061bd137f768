//! Multicast groups of datagram QPs. In RoCEv2 a group is an IP multicast address.

use core::ffi::c_int;
use std::net::IpAddr;

use crate::abi::{ibv_gid, ibv_qp, ibv_qp_ex};
use crate::errno::{Errno, code};
use crate::gid;
use crate::guard::guard;
use crate::handle;
use crate::qp::Qp;

/// The QP, and the group that a GID names.
///
/// # Safety
/// `gid` must be null or point to a GID.
unsafe fn of<'a>(qp: *mut ibv_qp, gid: *const ibv_gid) -> Result<(&'a Qp, IpAddr), Errno> {
    let inner = handle::find(qp.cast::<ibv_qp_ex>())?;
    if gid.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, so a GID by the caller's word; it need not be aligned.
    let group = gid::to_addr(&unsafe { gid.read_unaligned() });
    let same_family = group.is_ipv4() == inner.ctx.device.addr.is_ipv4();
    if group.is_multicast() && same_family { Ok((inner, group)) } else { Err(Errno::INVAL) }
}

/// `ibv_attach_mcast`: datagrams to the group reach the QP.
///
/// # Safety
/// `qp` must be a queue pair, and `gid` point to a GID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: by the caller's word.
        code(unsafe { of(qp, gid) }.and_then(|(qp, group)| Ok(qp.core()?.attach_group(group)?)))
    })
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// As for [`ibv_attach_mcast`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: by the caller's word.
        code(unsafe { of(qp, gid) }.and_then(|(qp, group)| Ok(qp.core()?.detach_group(group)?)))
    })
}
