//! SDR for C programs: the calls of the paper's Table 1, and those that free what they make.
//!
//! Calls that make something return it, or NULL; the others return a status. Two things differ from
//! the paper. A bitmap is a copy, made anew by each call, since the engine's own is no array of
//! bytes. And information for the peer has the device's address in it, so that one blob is all that
//! a program has to carry.

use std::ffi::{c_char, c_void};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use bowline::{Access, Buffer, Device, Mr, Pd, RecvHandle, SdrConfig, SdrInfo, SdrQp, SendHandle};

use crate::memory::{give, object, string};
use crate::{BOWLINE_E_TIMEOUT, Trouble, guard};

/// Memory that is only sent from.
pub const BOWLINE_SDR_SEND: u32 = 0;
/// Memory that peers may write: for receives.
pub const BOWLINE_SDR_RECV: u32 = 1;
/// Bytes that information about a queue pair has at most.
pub const BOWLINE_SDR_INFO_LEN: usize = 4096;

/// A device and its resources, which queue pairs share.
pub struct bowline_sdr_ctx {
    pd: Pd,
}

/// A queue pair of messages that complete chunk by chunk.
pub struct bowline_sdr_qp {
    qp: Arc<SdrQp>,
    addr: IpAddr,
}

/// Registered memory.
pub struct bowline_sdr_mr {
    mr: Mr,
}

/// A message being sent.
pub struct bowline_sdr_snd_handle {
    qp: Arc<SdrQp>,
    message: SendHandle,
}

/// A message being received.
pub struct bowline_sdr_rcv_handle {
    qp: Arc<SdrQp>,
    receive: RecvHandle,
    bitmap: Vec<u8>,
}

/// How to make a queue pair. Zeros, and NULL in its place, are the defaults. Both ends need the
/// same, but for the rate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_qp_attr {
    /// Bytes that a bit of a bitmap stands for [64 KiB].
    pub chunk_bytes: u32,
    /// Queue pairs over which packets spread (default: 1).
    pub channels: u32,
    /// Longest message in bytes [2 MiB].
    pub max_message: u64,
    /// Bits per second at which packets leave [as fast as they can].
    pub rate_bps: u64,
}

/// What a peer needs to know of a queue pair: to be carried there by any means.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_qp_info {
    /// Bytes that count.
    pub len: u32,
    /// What they are is Bowline's.
    pub bytes: [u8; BOWLINE_SDR_INFO_LEN],
}

/// A message to be sent piece by piece.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_start_wr {
    /// Its bytes.
    pub length: u64,
    /// Not 0 if it has an immediate.
    pub has_imm: u32,
    /// The immediate.
    pub imm: u32,
}

/// A piece of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_continue_wr {
    /// Where its bytes are.
    pub mr: *const bowline_sdr_mr,
    /// At which byte of the memory.
    pub mr_offset: usize,
    /// How many.
    pub length: usize,
    /// At which byte of the message: a whole number of packets.
    pub offset: u64,
    /// Not 0 to leave before all others.
    pub urgent: u32,
}

/// A whole message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_snd_wr {
    /// Where its bytes are.
    pub mr: *const bowline_sdr_mr,
    /// At which byte of the memory.
    pub mr_offset: usize,
    /// How many.
    pub length: usize,
    /// Not 0 if it has an immediate.
    pub has_imm: u32,
    /// The immediate.
    pub imm: u32,
}

/// Memory for a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_rcv_wr {
    /// Where it goes.
    pub mr: *const bowline_sdr_mr,
    /// At which byte of the memory.
    pub mr_offset: usize,
    /// Bytes at most.
    pub length: usize,
}

/// Runs the body of a call that makes something.
fn made<T>(body: impl FnOnce() -> Result<T, Trouble>) -> *mut T {
    let mut out = null_mut();
    guard(|| {
        out = Box::into_raw(Box::new(body()?));
        Ok(())
    });
    out
}

/// Frees what one of these calls has made.
///
/// # Safety
/// `pointer` is null or was made here, and nobody uses it.
unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(pointer) });
            Ok(())
        });
    }
}

/// Opens the device at an address of this machine, e.g. "10.0.0.7".
///
/// # Safety
/// `dev_name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_context_create(
    dev_name: *const c_char,
) -> *mut bowline_sdr_ctx {
    made(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { string(dev_name, "the device") }?;
        let addr = name.parse().map_err(|_| {
            Trouble::caller(format!("invalid device {name:?}: an IP address, e.g. 10.0.0.7"))
        })?;
        Ok(bowline_sdr_ctx { pd: Device::shared(addr)?.alloc_pd()? })
    })
}

/// Makes a queue pair.
///
/// # Safety
/// `ctx` has not been freed; `attr` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_create(
    ctx: *const bowline_sdr_ctx,
    attr: *const bowline_sdr_qp_attr,
) -> *mut bowline_sdr_qp {
    made(|| {
        // SAFETY: the caller's promise.
        let (ctx, attr) = unsafe { (object(ctx, "the context")?, attr.as_ref()) };
        let mut config = SdrConfig::default();
        if let Some(attr) = attr {
            let or = |given: u32, default: u32| if given == 0 { default } else { given };
            config.chunk_bytes = or(attr.chunk_bytes, config.chunk_bytes);
            config.channels = or(attr.channels, config.channels);
            if attr.max_message > 0 {
                config.max_message = attr.max_message;
            }
            config.rate_bps = Some(attr.rate_bps).filter(|bps| *bps > 0);
        }
        let qp = Arc::new(SdrQp::new(&ctx.pd, &config)?);
        Ok(bowline_sdr_qp { qp, addr: ctx.pd.device().addr() })
    })
}

/// Gets what the peer needs to know.
///
/// # Safety
/// `qp` has not been freed; `info` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_info_get(
    qp: *const bowline_sdr_qp,
    info: *mut bowline_sdr_qp_info,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let qp = unsafe { object(qp, "the queue pair") }?;
        if info.is_null() {
            return Err(Trouble::caller("the place for the information is NULL"));
        }
        let (addr, own) = (qp.addr.to_string(), qp.qp.info()?.to_bytes());
        let text = [&[addr.len() as u8], addr.as_bytes(), &own].concat();
        let mut out =
            bowline_sdr_qp_info { len: text.len() as u32, bytes: [0; BOWLINE_SDR_INFO_LEN] };
        let room = out.bytes.get_mut(..text.len());
        let room = room.ok_or_else(|| Trouble::caller("too many channels for the information"))?;
        room.copy_from_slice(&text);
        // SAFETY: the caller's promise.
        unsafe { info.write(out) };
        Ok(())
    })
}

/// Connects to a peer. Both ends must.
///
/// # Safety
/// `qp` has not been freed; `remote` is what the peer has got of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_connect(
    qp: *const bowline_sdr_qp,
    remote: *const bowline_sdr_qp_info,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (qp, remote) =
            unsafe { (object(qp, "the queue pair")?, object(remote, "the information")?) };
        let parsed = || {
            let (len, rest) = remote.bytes.get(..remote.len as usize)?.split_first()?;
            let (addr, own) = rest.split_at_checked(usize::from(*len))?;
            Some((std::str::from_utf8(addr).ok()?.parse::<IpAddr>().ok()?, own))
        };
        let invalid = || Trouble::caller("this is not what bowline_sdr_qp_info_get has written");
        let (addr, own) = parsed().ok_or_else(invalid)?;
        let own = SdrInfo::from_bytes(own).map_err(bowline::Error::from)?;
        Ok(qp.qp.connect(addr, &own)?)
    })
}

/// Registers memory of the program's: BOWLINE_SDR_SEND or BOWLINE_SDR_RECV.
///
/// # Safety
/// `ctx` has not been freed. `addr` has `length` bytes, to be read and for receives written, until
/// `bowline_sdr_mr_dereg` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_mr_reg(
    ctx: *const bowline_sdr_ctx,
    addr: *mut c_void,
    length: usize,
    flags: u32,
) -> *mut bowline_sdr_mr {
    made(|| {
        // SAFETY: the caller's promise.
        let ctx = unsafe { object(ctx, "the context") }?;
        let access = match flags {
            BOWLINE_SDR_SEND => Access::empty(),
            BOWLINE_SDR_RECV => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            _ => return Err(Trouble::caller(format!("there are no flags {flags}: take 0 or 1"))),
        };
        // SAFETY: the caller's promise.
        let buffer = unsafe { Buffer::foreign(addr.cast(), length, Box::new(())) };
        let buffer = buffer.ok_or_else(|| Trouble::caller("memory at no address"))?;
        Ok(bowline_sdr_mr { mr: ctx.pd.register_buffer(buffer, access)? })
    })
}

/// Ends a registration. From here on nothing reads or writes the memory; messages that still use it
/// fail. NULL is nothing.
///
/// # Safety
/// `mr` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_mr_dereg(mr: *mut bowline_sdr_mr) {
    // SAFETY: the caller's promise.
    if let Some(mr) = unsafe { mr.as_ref() } {
        guard(|| Ok(mr.mr.deregister()?));
    }
    // SAFETY: the caller's promise.
    unsafe { free(mr) };
}

/// Begins a message into the peer's next receive, to be sent piece by piece.
///
/// # Safety
/// `qp` has not been freed; `wr` is valid; `handle` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_stream_start(
    qp: *const bowline_sdr_qp,
    wr: *const bowline_sdr_start_wr,
    handle: *mut *mut bowline_sdr_snd_handle,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (qp, wr) = unsafe { (object(qp, "the queue pair")?, object(wr, "the request")?) };
        let message = qp.qp.send_start(wr.length, (wr.has_imm != 0).then_some(wr.imm))?;
        // SAFETY: the caller's promise.
        unsafe { give(handle, bowline_sdr_snd_handle { qp: Arc::clone(&qp.qp), message }) }
    })
}

/// Sends bytes of a message, for the first time or again.
///
/// # Safety
/// `handle` has not been freed; `wr` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_stream_continue(
    handle: *const bowline_sdr_snd_handle,
    wr: *const bowline_sdr_continue_wr,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (handle, wr) = unsafe { (object(handle, "the handle")?, object(wr, "the request")?) };
        // SAFETY: a valid request has memory that has not been freed.
        let mr = unsafe { object(wr.mr, "the memory") }?;
        let range = wr.mr_offset..wr.mr_offset.saturating_add(wr.length);
        let is_urgent = wr.urgent != 0;
        Ok(handle.qp.send_continue(handle.message, wr.offset, &mr.mr, range, is_urgent)?)
    })
}

/// Says that nothing more will be added to a message.
///
/// # Safety
/// `handle` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_stream_end(handle: *const bowline_sdr_snd_handle) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(handle, "the handle") }?;
        Ok(handle.qp.send_end(handle.message)?)
    })
}

/// Sends a whole message into the peer's next receive.
///
/// # Safety
/// `qp` has not been freed; `wr` is valid; `handle` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_post(
    qp: *const bowline_sdr_qp,
    wr: *const bowline_sdr_snd_wr,
    handle: *mut *mut bowline_sdr_snd_handle,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (qp, wr) = unsafe { (object(qp, "the queue pair")?, object(wr, "the request")?) };
        // SAFETY: a valid request has memory that has not been freed.
        let mr = unsafe { object(wr.mr, "the memory") }?;
        let range = wr.mr_offset..wr.mr_offset.saturating_add(wr.length);
        let message = qp.qp.send_post(&mr.mr, range, (wr.has_imm != 0).then_some(wr.imm))?;
        // SAFETY: the caller's promise.
        unsafe { give(handle, bowline_sdr_snd_handle { qp: Arc::clone(&qp.qp), message }) }
    })
}

/// Whether all of an ended message has left: BOWLINE_OK, or BOWLINE_E_TIMEOUT if not yet. Drives
/// the device.
///
/// # Safety
/// `handle` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_poll(handle: *const bowline_sdr_snd_handle) -> i32 {
    let mut has_left = false;
    let status = guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(handle, "the handle") }?;
        has_left = handle.qp.send_poll(handle.message)?;
        Ok(())
    });
    not_yet(status, has_left)
}

/// Frees the handle of a message. What of it has not left is forgotten; its memory is free when
/// `bowline_sdr_send_poll` has said so or `bowline_sdr_mr_dereg` has returned. NULL is nothing.
///
/// # Safety
/// `handle` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_free(handle: *mut bowline_sdr_snd_handle) {
    // SAFETY: the caller's promise.
    if let Some(handle) = unsafe { handle.as_ref() } {
        guard(|| match handle.qp.send_poll(handle.message)? {
            true => Ok(()),
            false => Ok(handle.qp.send_cancel(handle.message)?),
        });
    }
    // SAFETY: the caller's promise.
    unsafe { free(handle) };
}

/// Posts memory for the peer's next message.
///
/// # Safety
/// `qp` has not been freed; `wr` is valid; `handle` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_recv_post(
    qp: *const bowline_sdr_qp,
    wr: *const bowline_sdr_rcv_wr,
    handle: *mut *mut bowline_sdr_rcv_handle,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (qp, wr) = unsafe { (object(qp, "the queue pair")?, object(wr, "the request")?) };
        // SAFETY: a valid request has memory that has not been freed.
        let mr = unsafe { object(wr.mr, "the memory") }?;
        let range = wr.mr_offset..wr.mr_offset.saturating_add(wr.length);
        let receive = qp.qp.recv_post(&mr.mr, range)?;
        let made = bowline_sdr_rcv_handle { qp: Arc::clone(&qp.qp), receive, bitmap: Vec::new() };
        // SAFETY: the caller's promise.
        unsafe { give(handle, made) }
    })
}

/// Gets which chunks have arrived: chunk c is bit c % 8, from the lowest up, of byte c / 8; bits
/// beyond the last chunk are ones. It is a copy that lasts until the next call: call again for a
/// newer one. Drives the device.
///
/// # Safety
/// `handle` has not been freed, and nobody else uses it; `bitmap` and `len` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_recv_bitmap_get(
    handle: *mut bowline_sdr_rcv_handle,
    bitmap: *mut *const u8,
    len: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { handle.as_mut() };
        let handle = handle.ok_or_else(|| Trouble::caller("the handle is NULL"))?;
        if bitmap.is_null() || len.is_null() {
            return Err(Trouble::caller("the place for the bitmap is NULL"));
        }
        handle.bitmap = handle.qp.recv_bitmap(handle.receive)?;
        // SAFETY: the caller's promise.
        unsafe {
            bitmap.write(handle.bitmap.as_ptr());
            len.write(handle.bitmap.len());
        }
        Ok(())
    })
}

/// Gets the sender's immediate, or BOWLINE_E_TIMEOUT if it is not there yet. Drives the device.
///
/// # Safety
/// `handle` has not been freed; `immediate` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_recv_imm_get(
    handle: *const bowline_sdr_rcv_handle,
    immediate: *mut u32,
) -> i32 {
    let mut is_there = false;
    let status = guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(handle, "the handle") }?;
        if immediate.is_null() {
            return Err(Trouble::caller("the place for the immediate is NULL"));
        }
        if let Some(imm) = handle.qp.recv_imm(handle.receive)? {
            is_there = true;
            // SAFETY: the caller's promise.
            unsafe { immediate.write(imm) };
        }
        Ok(())
    });
    not_yet(status, is_there)
}

/// Ends a receive, early or late, and frees its handle. What comes later leads nowhere: the memory
/// is the program's again.
///
/// # Safety
/// `handle` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_recv_complete(handle: *mut bowline_sdr_rcv_handle) -> i32 {
    let status = guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { object(handle.cast_const(), "the handle") }?;
        Ok(handle.qp.recv_complete(handle.receive)?)
    });
    // SAFETY: the caller's promise.
    unsafe { free(handle) };
    status
}

/// Frees a queue pair, once all handles of its messages have been freed. NULL is nothing.
///
/// # Safety
/// `qp` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_destroy(qp: *mut bowline_sdr_qp) {
    // SAFETY: the caller's promise.
    unsafe { free(qp) };
}

/// Frees a context, once all that was made from it has been freed. NULL is nothing.
///
/// # Safety
/// `ctx` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_context_destroy(ctx: *mut bowline_sdr_ctx) {
    // SAFETY: the caller's promise.
    unsafe { free(ctx) };
}

/// The status of a look: not yet is no failure, and has no message.
fn not_yet(status: i32, is_there: bool) -> i32 {
    if status == 0 && !is_there { BOWLINE_E_TIMEOUT } else { status }
}
