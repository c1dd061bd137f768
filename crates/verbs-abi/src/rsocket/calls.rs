//! The functions of `<rdma/rsocket.h>` that make sockets, connect them, and move bytes.

use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use super::socket::{self, Phase, Socket};
use crate::errno::{Errno, minus_one};
use crate::guard::guard;
use crate::rdmacm::abi::rdma_cm_id;

/// The answer of a function that returns a count, or −1 and sets `errno`.
pub(super) fn counted(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(error) => {
            error.set();
            -1
        }
    }
}

fn descriptor(result: Result<std::sync::Arc<Socket>, Errno>) -> c_int {
    match result {
        Ok(socket) => socket.fd,
        Err(error) => minus_one(Err(error)),
    }
}

/// `rsocket`: streams only.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    guard(-1, || {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return minus_one(Err(Errno(libc::EAFNOSUPPORT)));
        }
        if kind & !flags != libc::SOCK_STREAM || !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return minus_one(Err(Errno(libc::EPROTONOSUPPORT)));
        }
        let made = Socket::create();
        if let Ok(socket) = &made {
            socket.nonblocking.store(kind & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
        }
        descriptor(made)
    })
}

/// `rbind`.
///
/// # Safety
/// `addr` must point to a socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(
    fd: c_int,
    addr: *const libc::sockaddr,
    _len: libc::socklen_t,
) -> c_int {
    // SAFETY: by the caller's word.
    guard(-1, || minus_one(socket::find(fd).and_then(|socket| unsafe { socket.bind(addr) })))
}

/// `rlisten`.
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    guard(-1, || minus_one(socket::find(fd).and_then(|socket| socket.listen(backlog))))
}

/// `raccept`.
///
/// # Safety
/// `addr` must be null or have room for `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    guard(-1, || {
        let made = socket::find(fd).and_then(|socket| socket.accept());
        if let Ok(socket) = &made
            && !addr.is_null()
        {
            // SAFETY: by the caller's word.
            let _ = unsafe { address(socket, addr, len, |id| &raw const (*id).route.addr.dst) };
        }
        descriptor(made)
    })
}

/// `rconnect`.
///
/// # Safety
/// `addr` must point to a socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const libc::sockaddr,
    _len: libc::socklen_t,
) -> c_int {
    // SAFETY: by the caller's word.
    guard(-1, || minus_one(socket::find(fd).and_then(|socket| unsafe { socket.connect(addr) })))
}

/// `rshutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    guard(-1, || minus_one(socket::find(fd).and_then(|socket| socket.shut_down(how))))
}

/// `rclose`: delivers what was sent first, unless the peer is gone.
#[unsafe(no_mangle)]
pub extern "C" fn rclose(fd: c_int) -> c_int {
    guard(-1, || {
        minus_one(socket::remove(fd).map(|socket| {
            let is_open = socket.lock().phase == Phase::Open;
            if is_open {
                // A connection that is over needs no shutdown.
                let _ = socket.shut_down(libc::SHUT_RDWR);
            }
        }))
    })
}

/// Receives into one piece of memory.
///
/// # Safety
/// `buf` must have room for `len` bytes.
unsafe fn receive(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Result<usize, Errno> {
    let socket = socket::find(fd)?;
    let peek = flags & libc::MSG_PEEK != 0;
    let mut done = 0;
    loop {
        let blocking = socket.blocks(flags);
        let arrived = socket.wait(blocking, |s| s.arrived_bytes > 0 || !s.readable);
        let taken = arrived.and_then(|mut inner| {
            let stream = inner.stream_mut()?;
            // SAFETY: room by the caller's word.
            let taken = unsafe { stream.receive(buf.add(done), len - done, peek) };
            let ended = taken == 0 && !stream.readable;
            // Return the space that was read to the peer soon.
            stream.progress();
            match stream.error {
                Some(error) if ended && len > 0 => Err(error),
                _ => Ok((taken, ended)),
            }
        });
        match taken {
            Ok((taken, ended)) => {
                done += taken;
                if ended || peek || done == len || flags & libc::MSG_WAITALL == 0 {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

/// Sends from one piece of memory.
///
/// # Safety
/// `buf` must point to `len` bytes.
unsafe fn send(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> Result<usize, Errno> {
    socket::find(fd)?.send_all(len, flags, |stream, done, left| {
        // SAFETY: within the program's bytes.
        unsafe { stream.send(buf.add(done), left) }
    })
}

/// Transfers pieces one after the other until one is incomplete; only the first one waits.
///
/// # Safety
/// `iov` must point to `count` pieces.
unsafe fn each_piece(
    iov: *const libc::iovec,
    count: usize,
    flags: c_int,
    mut moves: impl FnMut(*mut u8, usize, c_int) -> Result<usize, Errno>,
    waits_for_all: bool,
) -> Result<usize, Errno> {
    let mut total = 0;
    for at in 0..count {
        // SAFETY: by the caller's word.
        let piece = unsafe { *iov.add(at) };
        let later = if total > 0 && !waits_for_all { libc::MSG_DONTWAIT } else { 0 };
        match moves(piece.iov_base.cast(), piece.iov_len, flags | later) {
            Ok(moved) => {
                total += moved;
                if moved < piece.iov_len {
                    break;
                }
            }
            Err(error) if total == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(total)
}

/// # Safety
/// As for [`each_piece`], with room in the pieces.
unsafe fn receive_pieces(
    fd: c_int,
    iov: *const libc::iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let all = flags & libc::MSG_WAITALL != 0;
    // SAFETY: by the caller's word.
    unsafe { each_piece(iov, count, flags, |at, len, flags| receive(fd, at, len, flags), all) }
}

/// # Safety
/// As for [`each_piece`].
unsafe fn send_pieces(
    fd: c_int,
    iov: *const libc::iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: by the caller's word.
    unsafe { each_piece(iov, count, flags, |at, len, flags| send(fd, at, len, flags), true) }
}

/// `rrecv`.
///
/// # Safety
/// `buf` must have room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: by the caller's word.
    guard(-1, || counted(unsafe { receive(fd, buf.cast(), len, flags) }))
}

/// `rrecvfrom`: the sender is the stream's peer.
///
/// # Safety
/// As for [`rrecv`]; `addr` must be null or have room for `*addr_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut libc::sockaddr,
    addr_len: *mut libc::socklen_t,
) -> isize {
    // SAFETY: by the caller's word.
    let received = unsafe { rrecv(fd, buf, len, flags) };
    if received >= 0 && !addr.is_null() {
        // SAFETY: as above.
        unsafe { rgetpeername(fd, addr, addr_len) };
    }
    received
}

/// `rrecvmsg`.
///
/// # Safety
/// `msg` must be a message with room in its pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: by the caller's word.
    guard(-1, || counted(unsafe { receive_pieces(fd, (*msg).msg_iov, (*msg).msg_iovlen, flags) }))
}

/// `rread`.
///
/// # Safety
/// As for [`rrecv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: by the caller's word.
    unsafe { rrecv(fd, buf, len, 0) }
}

/// `rreadv`.
///
/// # Safety
/// `iov` must point to `count` pieces with room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(fd: c_int, iov: *const libc::iovec, count: c_int) -> isize {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: by the caller's word.
    guard(-1, || counted(unsafe { receive_pieces(fd, iov, count, 0) }))
}

/// `rsend`.
///
/// # Safety
/// `buf` must point to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: by the caller's word.
    guard(-1, || counted(unsafe { send(fd, buf.cast(), len, flags) }))
}

/// `rsendto`: a stream has one destination.
///
/// # Safety
/// As for [`rsend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const libc::sockaddr,
    _addr_len: libc::socklen_t,
) -> isize {
    if !addr.is_null() {
        return counted(Err(Errno(libc::EISCONN)));
    }
    // SAFETY: by the caller's word.
    unsafe { rsend(fd, buf, len, flags) }
}

/// `rsendmsg`.
///
/// # Safety
/// `msg` must be a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: by the caller's word.
    guard(-1, || counted(unsafe { send_pieces(fd, (*msg).msg_iov, (*msg).msg_iovlen, flags) }))
}

/// `rwrite`.
///
/// # Safety
/// As for [`rsend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> isize {
    // SAFETY: by the caller's word.
    unsafe { rsend(fd, buf, len, 0) }
}

/// `rwritev`.
///
/// # Safety
/// `iov` must point to `count` pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(fd: c_int, iov: *const libc::iovec, count: c_int) -> isize {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: by the caller's word.
    guard(-1, || counted(unsafe { send_pieces(fd, iov, count, 0) }))
}

/// Copies an address of a socket out, as much of it as fits.
///
/// # Safety
/// `to` must have room for `*len` bytes.
unsafe fn address(
    socket: &Socket,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    which: impl Fn(*mut rdma_cm_id) -> *const libc::sockaddr_storage,
) -> Result<(), Errno> {
    if to.is_null() || len.is_null() {
        return Err(Errno::FAULT);
    }
    let from = which(socket.lock().id);
    // SAFETY: the identifier lives as long as its socket; room by the caller's word.
    unsafe {
        let whole = match c_int::from((*from).ss_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return Err(Errno(libc::ENOTCONN)),
        };
        let room = whole.min(*len as usize);
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), room);
        *len = whole as libc::socklen_t;
    }
    Ok(())
}

/// `rgetpeername`.
///
/// # Safety
/// `addr` must have room for `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    guard(-1, || {
        minus_one(socket::find(fd).and_then(|socket| {
            // SAFETY: by the caller's word, and the identifier lives.
            unsafe { address(&socket, addr, len, |id| &raw const (*id).route.addr.dst) }
        }))
    })
}

/// `rgetsockname`.
///
/// # Safety
/// As for [`rgetpeername`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    guard(-1, || {
        minus_one(socket::find(fd).and_then(|socket| {
            // SAFETY: as above.
            unsafe { address(&socket, addr, len, |id| &raw const (*id).route.addr.src) }
        }))
    })
}
