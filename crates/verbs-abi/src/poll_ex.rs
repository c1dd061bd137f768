//! The polling functions of an extended completion queue: one completion at a time, column by
//! column.

use core::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

use bowline_nic::Completion;

use crate::abi::*;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::guard::guard;
use crate::handle;
use crate::poll::{self, BATCH};

/// Completions polled from the NIC ahead of the program, and the program's position among them.
pub(crate) struct Cursor {
    batch: [Completion; BATCH],
    len: usize,
    at: usize,
    /// When the batch was polled, by the device's clock and by the wall clock.
    device_ns: u64,
    wall_ns: u64,
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor { batch: [Completion::default(); BATCH], len: 0, at: 0, device_ns: 0, wall_ns: 0 }
    }
}

/// The structure that programs see, with its functions filled in.
pub(crate) fn public(cq: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        cq,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts,
        read_cvlan,
        read_flow_tag,
        read_tm_info,
        read_completion_wallclock_ns,
    }
}

/// Advances to the next completion, polling the NIC when none is left.
///
/// # Safety
/// `cq` must be a completion queue that this thread polls.
unsafe fn advance(cq: *mut ibv_cq_ex, inner: &Cq) -> Result<(), Errno> {
    // SAFETY: only this thread is between `start_poll` and `end_poll`.
    let cursor = unsafe { &mut *inner.cursor.get() };
    cursor.at += 1;
    if cursor.at >= cursor.len {
        cursor.at = 0;
        cursor.len = 0;
        let mut filled = 0;
        cursor.len = inner.poll(BATCH, |nic, now, cq, room| {
            cursor.device_ns = now.as_nanos();
            let taken = nic.poll_cq(cq, &mut cursor.batch[filled..filled + room])?;
            filled += taken;
            Ok(taken)
        })?;
        if cursor.len == 0 {
            return Err(Errno(libc::ENOENT));
        }
        cursor.wall_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    }
    let current = &cursor.batch[cursor.at];
    // SAFETY: the queue lives; these fields are ours to write.
    unsafe {
        (*cq).status = c_uint::from(current.status as u8);
        (*cq).wr_id = current.wr_id;
    }
    Ok(())
}

/// `ibv_start_poll`: `ENOENT` when there is nothing, and then `ibv_end_poll` must not be called.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: a completion queue, by the caller's word.
        let Ok(inner) = (unsafe { handle::inner(cq) }) else {
            return libc::EINVAL;
        };
        // SAFETY: null, or attributes by the caller's word.
        if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
            return libc::EINVAL;
        }
        if let Some(lock) = &inner.polling {
            lock.lock();
        }
        // SAFETY: this thread polls: it has the lock, or promised to be alone.
        match unsafe { advance(cq, inner) } {
            Ok(()) => 0,
            Err(Errno(errno)) => {
                if let Some(lock) = &inner.polling {
                    lock.unlock();
                }
                errno
            }
        }
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: a completion queue that this thread polls, by the caller's word.
        let result = unsafe { handle::inner(cq).and_then(|inner| advance(cq, inner)) };
        result.map_or_else(|Errno(errno)| errno, |()| 0)
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a completion queue that this thread polls, by the caller's word.
    if let Ok(inner) = unsafe { handle::inner(cq) }
        && let Some(lock) = &inner.polling
    {
        lock.unlock();
    }
}

/// Reads from the current completion.
///
/// # Safety
/// `cq` must be a completion queue that this thread polls.
#[inline]
unsafe fn current<R: Default>(
    cq: *mut ibv_cq_ex,
    read: impl FnOnce(&Cursor, &Completion) -> R,
) -> R {
    // SAFETY: by the contract above.
    let Ok(inner) = (unsafe { handle::inner(cq) }) else {
        return R::default();
    };
    // SAFETY: only this thread is between `start_poll` and `end_poll`.
    let cursor = unsafe { &*inner.cursor.get() };
    cursor.batch.get(cursor.at).map_or_else(R::default, |completion| read(cursor, completion))
}

macro_rules! columns {
    ($($name:ident -> $type:ty = |$cursor:pat_param, $completion:pat_param| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: a completion queue that this thread polls, by the caller's word.
            unsafe { current(cq, |$cursor, $completion| $value) }
        }
    )*};
}

columns! {
    read_opcode -> c_uint = |_, c| poll::opcode(c.opcode);
    read_vendor_err -> u32 = |_, _| 0;
    read_byte_len -> u32 = |_, c| c.byte_len;
    read_imm_data -> u32 = |_, c| poll::imm_or_key(c);
    read_qp_num -> u32 = |_, c| c.qpn.get();
    read_src_qp -> u32 = |_, c| c.src_qpn.get();
    read_wc_flags -> c_uint = |_, c| poll::flags(c);
    read_slid -> u32 = |_, _| 0;
    read_dlid_path_bits -> u8 = |_, _| 0;
    read_completion_ts -> u64 = |cursor, _| cursor.device_ns;
    read_cvlan -> u16 = |_, _| 0;
    read_flow_tag -> u32 = |_, _| 0;
    read_completion_wallclock_ns -> u64 = |cursor, _| cursor.wall_ns;
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: a completion queue that this thread polls, by the caller's word.
    unsafe {
        let sl = handle::inner(cq).map_or(0, |inner| inner.datagram_sl);
        current(cq, |_, c| if c.grh { sl } else { 0 })
    }
}

/// Tag matching is not supported, and no queue can be made to have this column.
unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    if !info.is_null() {
        // SAFETY: not null, so a structure by the caller's word.
        unsafe { info.write(ibv_wc_tm_info { tag: 0, priv_data: 0 }) };
    }
}
