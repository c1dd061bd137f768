//! The `ibv_wr_*` functions: work requests built step by step and posted together.

use core::ffi::{c_int, c_uint, c_void};
use core::ops::Range;

use bowline_nic::{Payload, Remote, SendFlags, SendOp, SendWr, Sge, UdDest};

use crate::abi::*;
use crate::errno::{Errno, code};
use crate::guard::guard;
use crate::post::{self, send_flags};
use crate::qp::Qp;
use crate::{handle, mw};

type QpEx = *mut ibv_qp_ex;

/// Requests built since `ibv_wr_start`. Its memory is allocated with the QP.
pub(crate) struct Builder {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    max_requests: usize,
    max_sge: usize,
    max_inline: usize,
    /// The first error: `ibv_wr_complete` reports it and posts nothing.
    error: Option<Errno>,
}

struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    payload: Piece,
    ud: Option<UdDest>,
    srqn: u32,
}

/// Which of the builder's entries or bytes belong to a request.
enum Piece {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Builder {
    pub(crate) fn new(cap: &ibv_qp_cap) -> Builder {
        let (max_requests, max_sge) = (cap.max_send_wr as usize, cap.max_send_sge as usize);
        let max_inline = cap.max_inline_data as usize;
        Builder {
            requests: Vec::with_capacity(max_requests),
            sges: Vec::with_capacity(max_requests * max_sge),
            // Few programs fill a queue with inline bytes between start and completion.
            inline: Vec::with_capacity(max_inline * max_requests.min(16)),
            max_requests,
            max_sge,
            max_inline,
            error: None,
        }
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    fn begin(&mut self, wr_id: u64, flags: c_uint, op: SendOp) {
        if self.requests.len() >= self.max_requests {
            return self.fail(Errno::NOMEM);
        }
        match send_flags(flags) {
            Ok(flags) => {
                let payload = Piece::Sges(0..0);
                self.requests.push(Request { wr_id, op, flags, payload, ud: None, srqn: 0 });
            }
            Err(errno) => self.fail(errno),
        }
    }

    /// Changes the current request.
    fn set(&mut self, change: impl FnOnce(&mut Request)) {
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.fail(Errno::INVAL),
        }
    }

    fn set_sges(&mut self, list: impl ExactSizeIterator<Item = Sge>) {
        if list.len() > self.max_sge {
            return self.fail(Errno::INVAL);
        }
        let start = self.sges.len();
        self.sges.extend(list);
        let end = self.sges.len();
        self.set(|request| request.payload = Piece::Sges(start..end));
    }

    /// Appends the pieces of an inline payload.
    fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let start = self.inline.len();
        for piece in pieces {
            if self.inline.len() - start + piece.len() > self.max_inline {
                return self.fail(Errno::INVAL);
            }
            self.inline.extend_from_slice(piece);
        }
        let end = self.inline.len();
        self.set(|request| request.payload = Piece::Inline(start..end));
    }

    fn post(&self, qp: &Qp) -> Result<(), Errno> {
        if let Some(errno) = self.error {
            return Err(errno);
        }
        qp.post(|nic, now, qpn| {
            self.requests.iter().try_for_each(|request| {
                let payload = match &request.payload {
                    Piece::Sges(range) => Payload::Sges(&self.sges[range.clone()]),
                    Piece::Inline(range) => Payload::Inline(&self.inline[range.clone()]),
                };
                let &Request { wr_id, op, flags, ud, srqn, .. } = request;
                nic.post_send(
                    now,
                    qpn,
                    &SendWr { payload, flags, ud, srqn, ..SendWr::new(wr_id, op, &[]) },
                )?;
                Ok(())
            })
        })
    }
}

/// The structure that programs see, with its functions filled in.
pub(crate) fn public(qp_base: ibv_qp, comp_mask: u64) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv,
        wr_send_tso,
        wr_set_ud_addr,
        wr_set_xrc_srqn,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write,
    }
}

/// Runs `f` on the builder.
///
/// # Safety
/// `qp` must be a queue pair on which this thread is between `ibv_wr_start` and its end.
#[inline]
unsafe fn with(qp: QpEx, f: impl FnOnce(&mut Builder)) {
    guard((), || {
        // SAFETY: a queue pair, by the caller's word.
        if let Ok(inner) = unsafe { handle::inner(qp) } {
            // SAFETY: only this thread is between `ibv_wr_start` and its end.
            f(unsafe { &mut *inner.builder.get() });
        }
    });
}

/// Begins a request, if the QP was made for its operation.
///
/// # Safety
/// As for [`with`].
#[inline]
unsafe fn begin(qp: QpEx, needs: u64, op: SendOp) {
    guard((), || {
        // SAFETY: a queue pair, by the caller's word; the program has set both fields before.
        let Ok(inner) = (unsafe { handle::inner(qp) }) else { return };
        // SAFETY: as above.
        let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        // SAFETY: only this thread is between `ibv_wr_start` and its end.
        let builder = unsafe { &mut *inner.builder.get() };
        if inner.send_ops & needs == 0 {
            return builder.fail(Errno::INVAL);
        }
        builder.begin(wr_id, flags, op);
    });
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) needs $needs:ident = $op:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: QpEx $(, $arg: $type)*) {
            // SAFETY: as the caller promises.
            unsafe { begin(qp, $needs, $op) }
        }
    )*};
}

operations! {
    wr_rdma_write(rkey: u32, addr: u64) needs IBV_QP_EX_WITH_RDMA_WRITE =
        SendOp::Write(Remote { addr, rkey });
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) needs IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM =
        SendOp::WriteImm(Remote { addr, rkey }, u32::from_be(imm));
    wr_rdma_read(rkey: u32, addr: u64) needs IBV_QP_EX_WITH_RDMA_READ =
        SendOp::Read(Remote { addr, rkey });
    wr_send() needs IBV_QP_EX_WITH_SEND = SendOp::Send;
    wr_send_imm(imm: u32) needs IBV_QP_EX_WITH_SEND_WITH_IMM =
        SendOp::SendImm(u32::from_be(imm));
    wr_send_inv(rkey: u32) needs IBV_QP_EX_WITH_SEND_WITH_INV = SendOp::SendInvalidate(rkey);
    wr_local_inv(rkey: u32) needs IBV_QP_EX_WITH_LOCAL_INV = SendOp::LocalInvalidate(rkey);
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64)
        needs IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP =
        SendOp::CompareSwap { remote: Remote { addr, rkey }, compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64)
        needs IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD =
        SendOp::FetchAdd { remote: Remote { addr, rkey }, add };
}

unsafe extern "C" fn wr_bind_mw(
    qp: QpEx,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: null or what to bind to, by the caller's word.
    let op = unsafe { info.as_ref() }.ok_or(Errno::INVAL).and_then(|info| mw::bind(mw, rkey, info));
    // SAFETY: as the caller promises.
    unsafe {
        match op {
            Ok(op) => begin(qp, IBV_QP_EX_WITH_BIND_MW, op),
            Err(error) => with(qp, |builder| builder.fail(error)),
        }
    }
}

/// Operations that no QP supports: using one fails the whole batch.
macro_rules! missing {
    ($($name:ident($($type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(qp: QpEx $(, _: $type)*) {
            // SAFETY: as the caller promises.
            unsafe { with(qp, |builder| builder.fail(Errno::UNSUPPORTED)) }
        }
    )*};
}

missing! {
    wr_send_tso(*mut c_void, u16, u16);
    wr_atomic_write(u32, u64, *const c_void);
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: QpEx, srqn: u32) {
    // SAFETY: a queue pair, by the caller's word.
    let inner = unsafe { handle::inner(qp) };
    let is_xrc = inner.is_ok_and(|inner| inner.qp_type.descriptor().addressed);
    // SAFETY: as the caller promises.
    unsafe {
        with(qp, |builder| match is_xrc {
            true => builder.set(|request| request.srqn = srqn),
            false => builder.fail(Errno::INVAL),
        });
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: QpEx, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: a queue pair and an address handle, by the caller's word.
    let (inner, ah) = unsafe { (handle::inner(qp), handle::inner(ah)) };
    let is_ud = inner.is_ok_and(|inner| !inner.qp_type.descriptor().connected);
    let dest = ah.and_then(|ah| post::dest(ah.av, qpn, qkey));
    // SAFETY: as the caller promises.
    unsafe {
        with(qp, |builder| match dest {
            Ok(dest) if is_ud => builder.set(|request| request.ud = Some(dest)),
            _ => builder.fail(Errno::INVAL),
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: QpEx, lkey: u32, addr: u64, len: u32) {
    // SAFETY: as the caller promises.
    unsafe { with(qp, |builder| builder.set_sges([Sge { addr, len, lkey }].into_iter())) }
}

unsafe extern "C" fn wr_set_sge_list(qp: QpEx, count: usize, list: *const ibv_sge) {
    // SAFETY: as the caller promises of the QP, and of `count` entries.
    unsafe {
        with(qp, |builder| {
            if count > builder.max_sge || (count > 0 && list.is_null()) {
                return builder.fail(Errno::INVAL);
            }
            let list = if count == 0 { &[] } else { core::slice::from_raw_parts(list, count) };
            let sges = list.iter().map(|s| Sge { addr: s.addr, len: s.length, lkey: s.lkey });
            builder.set_sges(sges);
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: QpEx, addr: *mut c_void, len: usize) {
    let one = ibv_data_buf { addr, length: len };
    // SAFETY: as the caller promises of the QP and the bytes.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: QpEx, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as the caller promises of the QP, of `count` entries, and of their bytes.
    unsafe {
        with(qp, |builder| {
            if count > 0 && list.is_null() {
                return builder.fail(Errno::INVAL);
            }
            let list = if count == 0 { &[] } else { core::slice::from_raw_parts(list, count) };
            builder.set_inline(list.iter().filter(|b| b.length > 0).map(|b| {
                // Capped: a longer one is rejected by its length alone.
                core::slice::from_raw_parts(b.addr.cast::<u8>(), b.length.min(isize::MAX as usize))
            }));
        });
    }
}

unsafe extern "C" fn wr_start(qp: QpEx) {
    // SAFETY: a queue pair, by the caller's word.
    if let Ok(inner) = unsafe { handle::inner(qp) } {
        inner.building.lock();
        // SAFETY: this thread has the lock now.
        unsafe { with(qp, Builder::clear) };
    }
}

/// Posts what was built. An error found while building means that nothing was posted; after one
/// found while posting (a full queue, a wrong state), earlier requests stay posted.
unsafe extern "C" fn wr_complete(qp: QpEx) -> c_int {
    // SAFETY: a queue pair, by the caller's word.
    let Ok(inner) = (unsafe { handle::inner(qp) }) else {
        return libc::EINVAL;
    };
    let result = guard(Err(Errno::IO), || {
        // SAFETY: this thread has had the lock since `ibv_wr_start`.
        unsafe { &*inner.builder.get() }.post(inner)
    });
    inner.building.unlock();
    code(result)
}

unsafe extern "C" fn wr_abort(qp: QpEx) {
    // SAFETY: a queue pair, by the caller's word.
    if let Ok(inner) = unsafe { handle::inner(qp) } {
        inner.building.unlock();
    }
}
