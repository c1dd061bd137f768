//! SDR for C programs: the calls of the paper's Table 1, and calls that free the objects they
//! create.
//!
//! Calls that create an object return it, or NULL; the others return a status. Two things differ
//! from the paper. A bitmap is a fresh copy on each call, because the engine's own bitmap is not an
//! array of bytes. And the information for the peer includes the device's address, so that a
//! program has to transfer only one blob.

use std::ffi::{c_char, c_void};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use bowline::{Access, Buffer, Device, Mr, Pd, RecvHandle, SdrConfig, SdrInfo, SdrQp, SendHandle};

use crate::memory::{give, object, string};
use crate::{BOWLINE_E_TIMEOUT, Trouble, guard};

/// Memory that is only sent from.
pub const BOWLINE_SDR_SEND: u32 = 0;
/// Memory that peers may write, for receives.
pub const BOWLINE_SDR_RECV: u32 = 1;
/// Maximum length of the information about a queue pair, in bytes.
pub const BOWLINE_SDR_INFO_LEN: usize = 4096;

/// A device and its resources, shared by queue pairs.
pub struct bowline_sdr_ctx {
    pd: Pd,
}

/// A queue pair whose messages complete chunk by chunk.
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

/// Attributes of a new queue pair. Zero fields, and a NULL pointer instead of the attributes,
/// select the defaults. Both ends need the same attributes, except for the rate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_qp_attr {
    /// Number of bytes that a bit of a bitmap stands for (default: 64 KiB).
    pub chunk_bytes: u32,
    /// Number of queue pairs that packets are spread over (default: 1).
    pub channels: u32,
    /// Maximum length of a message in bytes (default: 2 MiB).
    pub max_message: u64,
    /// Rate at which packets are sent, in bits per second (default: as fast as possible).
    pub rate_bps: u64,
}

/// What a peer needs to know about a queue pair. Transfer it there by any means.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_qp_info {
    /// Number of bytes in use.
    pub len: u32,
    /// The bytes, in a format private to Bowline.
    pub bytes: [u8; BOWLINE_SDR_INFO_LEN],
}

/// A message to be sent piece by piece.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_start_wr {
    /// Its length in bytes.
    pub length: u64,
    /// Nonzero if it has an immediate.
    pub has_imm: u32,
    /// The immediate.
    pub imm: u32,
}

/// A piece of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_continue_wr {
    /// The memory that holds its bytes.
    pub mr: *const bowline_sdr_mr,
    /// Offset in that memory.
    pub mr_offset: usize,
    /// Length in bytes.
    pub length: usize,
    /// Offset in the message, a multiple of the packet size.
    pub offset: u64,
    /// Nonzero to send it before all others.
    pub urgent: u32,
}

/// A whole message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_snd_wr {
    /// The memory that holds its bytes.
    pub mr: *const bowline_sdr_mr,
    /// Offset in that memory.
    pub mr_offset: usize,
    /// Length in bytes.
    pub length: usize,
    /// Nonzero if it has an immediate.
    pub has_imm: u32,
    /// The immediate.
    pub imm: u32,
}

/// Memory for a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_sdr_rcv_wr {
    /// The memory that it is written to.
    pub mr: *const bowline_sdr_mr,
    /// Offset in that memory.
    pub mr_offset: usize,
    /// Maximum length in bytes.
    pub length: usize,
}

/// Runs the body of a call that creates an object.
fn made<T>(body: impl FnOnce() -> Result<T, Trouble>) -> *mut T {
    let mut out = null_mut();
    guard(|| {
        out = Box::into_raw(Box::new(body()?));
        Ok(())
    });
    out
}

/// Frees an object created by one of these calls.
///
/// # Safety
/// `pointer` is null or was created here, and nothing uses it.
unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        guard(|| {
            // SAFETY: upheld by the caller.
            drop(unsafe { Box::from_raw(pointer) });
            Ok(())
        });
    }
}

/// Opens the device at a local address, e.g. "10.0.0.7".
///
/// # Safety
/// `dev_name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_context_create(
    dev_name: *const c_char,
) -> *mut bowline_sdr_ctx {
    made(|| {
        // SAFETY: upheld by the caller.
        let name = unsafe { string(dev_name, "the device") }?;
        let addr = name.parse().map_err(|_| {
            Trouble::caller(format!("invalid device {name:?}: an IP address, e.g. 10.0.0.7"))
        })?;
        Ok(bowline_sdr_ctx { pd: Device::shared(addr)?.alloc_pd()? })
    })
}

/// Creates a queue pair.
///
/// # Safety
/// `ctx` has not been freed; `attr` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_create(
    ctx: *const bowline_sdr_ctx,
    attr: *const bowline_sdr_qp_attr,
) -> *mut bowline_sdr_qp {
    made(|| {
        // SAFETY: upheld by the caller.
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

/// Gets the information that the peer needs.
///
/// # Safety
/// `qp` has not been freed; `info` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_info_get(
    qp: *const bowline_sdr_qp,
    info: *mut bowline_sdr_qp_info,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let qp = unsafe { object(qp, "the queue pair") }?;
        if info.is_null() {
            return Err(Trouble::caller("the pointer for the information is NULL"));
        }
        let (addr, own) = (qp.addr.to_string(), qp.qp.info()?.to_bytes());
        let text = [&[addr.len() as u8], addr.as_bytes(), &own].concat();
        let mut out =
            bowline_sdr_qp_info { len: text.len() as u32, bytes: [0; BOWLINE_SDR_INFO_LEN] };
        let room = out.bytes.get_mut(..text.len());
        let room = room.ok_or_else(|| {
            Trouble::caller("the information has no room for this many channels: use fewer")
        })?;
        room.copy_from_slice(&text);
        // SAFETY: upheld by the caller.
        unsafe { info.write(out) };
        Ok(())
    })
}

/// Connects to a peer. Both ends must call it.
///
/// # Safety
/// `qp` has not been freed; `remote` is the information that the peer got about its own queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_connect(
    qp: *const bowline_sdr_qp,
    remote: *const bowline_sdr_qp_info,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let (qp, remote) =
            unsafe { (object(qp, "the queue pair")?, object(remote, "the information")?) };
        let parsed = || {
            let (len, rest) = remote.bytes.get(..remote.len as usize)?.split_first()?;
            let (addr, own) = rest.split_at_checked(usize::from(*len))?;
            Some((std::str::from_utf8(addr).ok()?.parse::<IpAddr>().ok()?, own))
        };
        let invalid = || {
            Trouble::caller(
                "invalid information: pass what bowline_sdr_qp_info_get returned at the peer",
            )
        };
        let (addr, own) = parsed().ok_or_else(invalid)?;
        let own = SdrInfo::from_bytes(own).map_err(bowline::Error::from)?;
        Ok(qp.qp.connect(addr, &own)?)
    })
}

/// Registers memory of the program. `flags` is BOWLINE_SDR_SEND or BOWLINE_SDR_RECV.
///
/// # Safety
/// `ctx` has not been freed. `addr` points to `length` bytes that can be read, and for receives
/// written, until `bowline_sdr_mr_dereg` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_mr_reg(
    ctx: *const bowline_sdr_ctx,
    addr: *mut c_void,
    length: usize,
    flags: u32,
) -> *mut bowline_sdr_mr {
    made(|| {
        // SAFETY: upheld by the caller.
        let ctx = unsafe { object(ctx, "the context") }?;
        let access = match flags {
            BOWLINE_SDR_SEND => Access::empty(),
            BOWLINE_SDR_RECV => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            _ => {
                return Err(Trouble::caller(format!(
                    "invalid flags {flags}: use BOWLINE_SDR_SEND or BOWLINE_SDR_RECV"
                )));
            }
        };
        // SAFETY: upheld by the caller.
        let buffer = unsafe { Buffer::foreign(addr.cast(), length, Box::new(())) };
        let buffer = buffer.ok_or_else(|| {
            Trouble::caller("invalid memory: its address is NULL or beyond the address space")
        })?;
        Ok(bowline_sdr_mr { mr: ctx.pd.register_buffer(buffer, access)? })
    })
}

/// Deregisters memory. From here on nothing reads or writes it; messages that still use it fail.
/// NULL is ignored.
///
/// # Safety
/// `mr` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_mr_dereg(mr: *mut bowline_sdr_mr) {
    // SAFETY: upheld by the caller.
    if let Some(mr) = unsafe { mr.as_ref() } {
        guard(|| Ok(mr.mr.deregister()?));
    }
    // SAFETY: upheld by the caller.
    unsafe { free(mr) };
}

/// Starts a message into the peer's next receive, to be sent piece by piece.
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
        // SAFETY: upheld by the caller.
        let (qp, wr) = unsafe { (object(qp, "the queue pair")?, object(wr, "the request")?) };
        let message = qp.qp.send_start(wr.length, (wr.has_imm != 0).then_some(wr.imm))?;
        // SAFETY: upheld by the caller.
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
        // SAFETY: upheld by the caller.
        let (handle, wr) = unsafe { (object(handle, "the handle")?, object(wr, "the request")?) };
        // SAFETY: a valid request has memory that has not been freed.
        let mr = unsafe { object(wr.mr, "the memory") }?;
        let range = wr.mr_offset..wr.mr_offset.saturating_add(wr.length);
        let is_urgent = wr.urgent != 0;
        Ok(handle.qp.send_continue(handle.message, wr.offset, &mr.mr, range, is_urgent)?)
    })
}

/// Ends a message: nothing more will be added to it.
///
/// # Safety
/// `handle` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_stream_end(handle: *const bowline_sdr_snd_handle) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
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
        // SAFETY: upheld by the caller.
        let (qp, wr) = unsafe { (object(qp, "the queue pair")?, object(wr, "the request")?) };
        // SAFETY: a valid request has memory that has not been freed.
        let mr = unsafe { object(wr.mr, "the memory") }?;
        let range = wr.mr_offset..wr.mr_offset.saturating_add(wr.length);
        let message = qp.qp.send_post(&mr.mr, range, (wr.has_imm != 0).then_some(wr.imm))?;
        // SAFETY: upheld by the caller.
        unsafe { give(handle, bowline_sdr_snd_handle { qp: Arc::clone(&qp.qp), message }) }
    })
}

/// Whether all of an ended message has been sent: BOWLINE_OK, or BOWLINE_E_TIMEOUT if not yet.
/// Drives the device.
///
/// # Safety
/// `handle` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_poll(handle: *const bowline_sdr_snd_handle) -> i32 {
    let mut has_left = false;
    let status = guard(|| {
        // SAFETY: upheld by the caller.
        let handle = unsafe { object(handle, "the handle") }?;
        has_left = handle.qp.send_poll(handle.message)?;
        Ok(())
    });
    not_yet(status, has_left)
}

/// Frees the handle of a message. Unsent bytes are dropped. The program may reuse the memory when
/// `bowline_sdr_send_poll` has returned BOWLINE_OK or `bowline_sdr_mr_dereg` has returned. NULL is
/// ignored.
///
/// # Safety
/// `handle` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_send_free(handle: *mut bowline_sdr_snd_handle) {
    // SAFETY: upheld by the caller.
    if let Some(handle) = unsafe { handle.as_ref() } {
        guard(|| match handle.qp.send_poll(handle.message)? {
            true => Ok(()),
            false => Ok(handle.qp.send_cancel(handle.message)?),
        });
    }
    // SAFETY: upheld by the caller.
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
        // SAFETY: upheld by the caller.
        let (qp, wr) = unsafe { (object(qp, "the queue pair")?, object(wr, "the request")?) };
        // SAFETY: a valid request has memory that has not been freed.
        let mr = unsafe { object(wr.mr, "the memory") }?;
        let range = wr.mr_offset..wr.mr_offset.saturating_add(wr.length);
        let receive = qp.qp.recv_post(&mr.mr, range)?;
        let made = bowline_sdr_rcv_handle { qp: Arc::clone(&qp.qp), receive, bitmap: Vec::new() };
        // SAFETY: upheld by the caller.
        unsafe { give(handle, made) }
    })
}

/// Gets the bitmap of the chunks that have arrived. Chunk c is bit c % 8 of byte c / 8, where bit 0
/// is the lowest; bits beyond the last chunk are ones. The bitmap is a copy that is valid until the
/// next call: call again for a newer one. Drives the device.
///
/// # Safety
/// `handle` has not been freed, and nothing else uses it; `bitmap` and `len` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_recv_bitmap_get(
    handle: *mut bowline_sdr_rcv_handle,
    bitmap: *mut *const u8,
    len: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let handle = unsafe { handle.as_mut() };
        let handle = handle.ok_or_else(|| Trouble::caller("the handle is NULL"))?;
        if bitmap.is_null() || len.is_null() {
            return Err(Trouble::caller("the pointer for the bitmap is NULL"));
        }
        handle.bitmap = handle.qp.recv_bitmap(handle.receive)?;
        // SAFETY: upheld by the caller.
        unsafe {
            bitmap.write(handle.bitmap.as_ptr());
            len.write(handle.bitmap.len());
        }
        Ok(())
    })
}

/// Gets the sender's immediate, or returns BOWLINE_E_TIMEOUT if it has not arrived yet. Drives the
/// device.
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
        // SAFETY: upheld by the caller.
        let handle = unsafe { object(handle, "the handle") }?;
        if immediate.is_null() {
            return Err(Trouble::caller("the pointer for the immediate is NULL"));
        }
        if let Some(imm) = handle.qp.recv_imm(handle.receive)? {
            is_there = true;
            // SAFETY: upheld by the caller.
            unsafe { immediate.write(imm) };
        }
        Ok(())
    });
    not_yet(status, is_there)
}

/// Ends a receive, whether complete or not, and frees its handle. Later packets are dropped, so the
/// program may reuse the memory.
///
/// # Safety
/// `handle` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_recv_complete(handle: *mut bowline_sdr_rcv_handle) -> i32 {
    let status = guard(|| {
        // SAFETY: upheld by the caller.
        let handle = unsafe { object(handle.cast_const(), "the handle") }?;
        Ok(handle.qp.recv_complete(handle.receive)?)
    });
    // SAFETY: upheld by the caller.
    unsafe { free(handle) };
    status
}

/// Frees a queue pair, once all handles of its messages have been freed. NULL is ignored.
///
/// # Safety
/// `qp` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_qp_destroy(qp: *mut bowline_sdr_qp) {
    // SAFETY: upheld by the caller.
    unsafe { free(qp) };
}

/// Frees a context, once everything created from it has been freed. NULL is ignored.
///
/// # Safety
/// `ctx` is NULL or has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_sdr_context_destroy(ctx: *mut bowline_sdr_ctx) {
    // SAFETY: upheld by the caller.
    unsafe { free(ctx) };
}

/// The status of a poll: "not yet" is not a failure, and has no message.
fn not_yet(status: i32, is_there: bool) -> i32 {
    if status == 0 && !is_there { BOWLINE_E_TIMEOUT } else { status }
}
