//! Posts chains of work requests: one lock and one transmission per chain.

use core::ffi::{c_int, c_uint};

use bowline_nic::{
    Nic, Payload, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, Time, UdDest,
};
use bowline_wire::Qpn;

use crate::abi::*;
use crate::errno::Errno;
use crate::guard::guard;
use crate::{handle, mw};

/// The longest gather or scatter list, and the most inline bytes, of any queue.
pub(crate) const MAX_SGE: usize = 32;
pub(crate) const MAX_INLINE: usize = 1024;

/// `ibv_post_send`, in the context's table.
///
/// # Safety
/// `qp` must be a queue pair, `wr` a chain of work requests whose lists and inline bytes are there,
/// and `bad` null or a pointer to a pointer.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(Err(Errno::IO), || {
        // SAFETY: a queue pair, by the caller's word.
        let inner = unsafe { handle::inner(qp.cast::<ibv_qp_ex>()) }?;
        inner.post(|nic, now, qpn| {
            // SAFETY: a chain of requests, by the caller's word.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: as above.
                unsafe { send_one(nic, now, qpn, inner.qp_type, request) }?;
                at = request.next;
            }
            Ok(())
        })
    });
    // SAFETY: as the caller promises.
    unsafe { finish(result, at, wr, bad) }
}

/// Reports the first request that was not posted.
///
/// # Safety
/// `bad` must be null or a pointer to a pointer.
#[inline]
unsafe fn finish<T>(
    result: Result<(), Errno>,
    at: *mut T,
    first: *mut T,
    bad: *mut *mut T,
) -> c_int {
    let Err(Errno(errno)) = result else { return 0 };
    if !bad.is_null() {
        // A device that died has taken them all or none: say none.
        // SAFETY: not null, so a pointer to a pointer.
        unsafe { *bad = if at.is_null() { first } else { at } };
    }
    errno
}

/// Posts one send request.
///
/// # Safety
/// The request's list must have `num_sge` entries and, if it is inline, its bytes must be there.
#[inline]
unsafe fn send_one(
    nic: &mut Nic,
    now: Time,
    qpn: Qpn,
    qp_type: QpType,
    wr: &ibv_send_wr,
) -> Result<(), Errno> {
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::INVAL)?;
    if count > MAX_SGE || (count > 0 && wr.sg_list.is_null()) {
        return Err(Errno::INVAL);
    }
    let list = match count {
        0 => &[],
        // SAFETY: `count` entries by the caller's word; an empty list is not looked at.
        _ => unsafe { core::slice::from_raw_parts(wr.sg_list, count) },
    };
    let op = operation(wr)?;
    let flags = send_flags(wr.send_flags)?;
    // SAFETY: on a UD QP the caller filled in the union's datagram part.
    let ud = if qp_type.descriptor().connected { None } else { Some(unsafe { destination(wr) }?) };
    let srqn = if qp_type.descriptor().addressed { wr.xrc_remote_srqn } else { 0 };
    let mut post = |payload: Payload<'_>| {
        nic.post_send(
            now,
            qpn,
            &SendWr { payload, flags, ud, srqn, ..SendWr::new(wr.wr_id, op, &[]) },
        )
        .map_err(Errno::from)
    };
    if wr.send_flags & IBV_SEND_INLINE != 0 {
        // SAFETY: inline bytes are there, by the caller's word.
        return unsafe { with_inline(list, |bytes| post(Payload::Inline(bytes))) };
    }
    with_sges(list, |sges| post(Payload::Sges(sges)))
}

/// The list in the NIC's form.
#[inline]
fn with_sges<R>(list: &[ibv_sge], f: impl FnOnce(&[Sge]) -> R) -> R {
    let convert = |sge: &ibv_sge| Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey };
    match list {
        [] => f(&[]),
        [one] => f(&[convert(one)]),
        many => {
            let mut sges = [Sge::default(); MAX_SGE];
            for (to, from) in sges.iter_mut().zip(many) {
                *to = convert(from);
            }
            f(&sges[..many.len()])
        }
    }
}

/// The bytes of an inline list, concatenated.
///
/// # Safety
/// Every entry must name bytes that are there.
#[inline]
unsafe fn with_inline(
    list: &[ibv_sge],
    f: impl FnOnce(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let bytes = |sge: &ibv_sge| match sge.length {
        0 => &[][..],
        // SAFETY: by the contract above; an empty entry, which may have any address, is not read.
        len => unsafe { core::slice::from_raw_parts(sge.addr as *const u8, len as usize) },
    };
    match list {
        [] => f(&[]),
        [one] => f(bytes(one)),
        many => {
            let mut gathered = [0; MAX_INLINE];
            let mut len = 0;
            for sge in many {
                let piece = bytes(sge);
                let room = gathered.get_mut(len..len + piece.len()).ok_or(Errno::INVAL)?;
                room.copy_from_slice(piece);
                len += piece.len();
            }
            f(&gathered[..len])
        }
    }
}

/// The operation of a request. Operations that no QP here supports are rejected at once.
#[inline]
fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: any bytes are a valid `rdma` and a valid `atomic`; which the program filled in
    // follows from the opcode.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let word = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    Ok(match wr.opcode {
        IBV_WR_RDMA_WRITE => SendOp::Write(remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote, u32::from_be(wr.imm_data)),
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendImm(u32::from_be(wr.imm_data)),
        IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate(wr.imm_data),
        IBV_WR_RDMA_READ => SendOp::Read(remote),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: word, add: atomic.compare_add },
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(wr.imm_data),
        IBV_WR_BIND_MW => mw::bind(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info)?,
        // TSO, atomic writes and drivers' own.
        _ => return Err(Errno::UNSUPPORTED),
    })
}

/// The flags of a request. Unsupported flags are rejected.
#[inline]
pub(crate) fn send_flags(flags: c_uint) -> Result<SendFlags, Errno> {
    let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    let mut out = SendFlags::empty();
    out.set(SendFlags::SIGNALED, flags & IBV_SEND_SIGNALED != 0);
    out.set(SendFlags::FENCE, flags & IBV_SEND_FENCE != 0);
    out.set(SendFlags::SOLICITED, flags & IBV_SEND_SOLICITED != 0);
    Ok(out)
}

/// Where a datagram goes.
///
/// # Safety
/// The request's address handle must be null or live.
unsafe fn destination(wr: &ibv_send_wr) -> Result<UdDest, Errno> {
    // SAFETY: by the contract above.
    let (ud, ah) = unsafe { (wr.wr.ud, handle::inner(wr.wr.ud.ah)?) };
    dest(ah.av, ud.remote_qpn, ud.remote_qkey)
}

pub(crate) fn dest(av: bowline_nic::AddressVector, qpn: u32, qkey: u32) -> Result<UdDest, Errno> {
    if qpn > 0xff_ffff {
        return Err(Errno::INVAL);
    }
    Ok(UdDest { av, qpn: Qpn::new(qpn), qkey })
}

/// Posts a chain of receives through `post`.
///
/// # Safety
/// `wr` must be a chain of receives whose lists are there, and `at` is left at the first that was
/// not taken.
#[inline]
unsafe fn recv_chain(
    at: &mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: a chain of requests, by the caller's word.
    while let Some(wr) = unsafe { at.as_ref() } {
        let count = usize::try_from(wr.num_sge).map_err(|_| Errno::INVAL)?;
        if count > MAX_SGE || (count > 0 && wr.sg_list.is_null()) {
            return Err(Errno::INVAL);
        }
        let list = match count {
            0 => &[][..],
            // SAFETY: `count` entries by the caller's word.
            _ => unsafe { core::slice::from_raw_parts(wr.sg_list, count) },
        };
        with_sges(list, |sges| post(&RecvWr::new(wr.wr_id, sges)))?;
        *at = wr.next;
    }
    Ok(())
}

/// `ibv_post_recv`, in the context's table.
///
/// # Safety
/// As for [`post_send`], of receives.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(Err(Errno::IO), || {
        // SAFETY: a queue pair, by the caller's word.
        let inner = unsafe { handle::inner(qp.cast::<ibv_qp_ex>()) }?;
        inner.post(|nic, _, qpn| {
            // SAFETY: a chain of receives, by the caller's word.
            unsafe { recv_chain(&mut at, |wr| Ok(nic.post_recv(qpn, wr)?)) }
        })
    });
    // SAFETY: as the caller promises.
    unsafe { finish(result, at, wr, bad) }
}

/// `ibv_post_srq_recv`, in the context's table.
///
/// # Safety
/// As for [`post_send`], of receives and a shared receive queue.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(Err(Errno::IO), || {
        // SAFETY: a shared receive queue, by the caller's word.
        let inner = unsafe { handle::inner(srq) }?;
        // SAFETY: a chain of receives, by the caller's word.
        unsafe { recv_chain(&mut at, |wr| inner.post(wr)) }
    });
    // SAFETY: as the caller promises.
    unsafe { finish(result, at, wr, bad) }
}
