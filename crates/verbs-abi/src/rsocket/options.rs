//! Socket options. Meaningful ones take effect; those that are meaningful only to TCP are stored.

use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use super::socket::{self, Inner};
use crate::errno::{Errno, minus_one};
use crate::guard::guard;

const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// Options without effect.
const KEPT: [(c_int, c_int); 9] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

impl Inner {
    fn set(&mut self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let number = value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
        let sizes = &mut self.sizes;
        let (what, limit): (&mut u16, u32) = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => {
                let bytes = number.and_then(|n| u32::try_from(n).ok()).ok_or(Errno::INVAL)?;
                let bytes = bytes.clamp(4096, 1 << 28);
                match name {
                    libc::SO_SNDBUF => sizes.send_bytes = bytes,
                    _ => sizes.receive_bytes = bytes,
                }
                return Ok(());
            }
            (SOL_RDMA, RDMA_SQSIZE) => (&mut sizes.sends, 8192),
            (SOL_RDMA, RDMA_RQSIZE) => (&mut sizes.receives, 8192),
            (SOL_RDMA, RDMA_INLINE) => (&mut sizes.inline, 256),
            (SOL_RDMA, RDMA_IOMAPSIZE) => (&mut sizes.maps, 128),
            _ if KEPT.contains(&(level, name)) => {
                self.kept.retain(|(l, n, _)| (*l, *n) != (level, name));
                self.kept.push((level, name, value.to_vec()));
                return Ok(());
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        if self.stream.is_some() {
            // The queue pair's size is fixed already.
            return Err(Errno::INVAL);
        }
        let asked = number.and_then(|n| u32::try_from(n).ok()).ok_or(Errno::INVAL)?;
        *what = asked.min(limit) as u16;
        Ok(())
    }

    fn get(&mut self, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
        let sizes = self.stream.as_ref().map_or(self.sizes, |stream| stream.sizes);
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let of_stream = self.stream.as_mut().and_then(|stream| stream.error.take());
                self.error.take().or(of_stream).map_or(0, |error| error.0)
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_bytes as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_bytes as c_int,
            (SOL_RDMA, RDMA_SQSIZE) => sizes.sends.into(),
            (SOL_RDMA, RDMA_RQSIZE) => sizes.receives.into(),
            (SOL_RDMA, RDMA_INLINE) => sizes.inline.into(),
            (SOL_RDMA, RDMA_IOMAPSIZE) => sizes.maps.into(),
            key if KEPT.contains(&key) => {
                let found = self.kept.iter().find(|(l, n, _)| (*l, *n) == key);
                return Ok(found.map_or_else(|| vec![0; 4], |(_, _, value)| value.clone()));
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        Ok(number.to_ne_bytes().to_vec())
    }
}

/// `rsetsockopt`.
///
/// # Safety
/// `value` must point to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    guard(-1, || {
        minus_one(socket::find(fd).and_then(|socket| {
            if value.is_null() {
                return Err(Errno::FAULT);
            }
            // SAFETY: as many bytes by the caller's word; no option is longer than this.
            let value =
                unsafe { core::slice::from_raw_parts(value.cast::<u8>(), (len as usize).min(64)) };
            socket.lock().set(level, name, value)
        }))
    })
}

/// `rgetsockopt`.
///
/// # Safety
/// `value` must have room for `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    guard(-1, || {
        minus_one(socket::find(fd).and_then(|socket| {
            if value.is_null() || len.is_null() {
                return Err(Errno::FAULT);
            }
            let found = socket.lock().get(level, name)?;
            // SAFETY: room by the caller's word.
            unsafe {
                let room = found.len().min(*len as usize);
                core::ptr::copy_nonoverlapping(found.as_ptr(), value.cast(), room);
                *len = room as libc::socklen_t;
            }
            Ok(())
        }))
    })
}

/// `rfcntl`: `F_GETFL` and `F_SETFL`. C's is variadic; on the machines that this is built for, an
/// `int` behind the fixed arguments is passed as one of them.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(fd: c_int, command: c_int, value: c_int) -> c_int {
    guard(-1, || {
        let socket = match socket::find(fd) {
            Ok(socket) => socket,
            Err(error) => return minus_one(Err(error)),
        };
        match command {
            libc::F_GETFL => {
                let nonblocking = socket.nonblocking.load(Ordering::Relaxed);
                libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
            }
            libc::F_SETFL => {
                socket.nonblocking.store(value & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                0
            }
            _ => minus_one(Err(Errno(libc::ENOTSUP))),
        }
    })
}
