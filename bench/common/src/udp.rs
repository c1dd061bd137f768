//! UDP sockets as fast as the kernel has them: segmentation offload, several bursts a call.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

/// Most messages that one `sendmmsg` or `recvmmsg` carries here.
pub const MAX_BATCH: usize = 16;

/// Sets a socket option that is an `int`.
fn set_int(socket: &UdpSocket, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option value is an `int` that outlives the call, and its size is passed along.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The largest socket buffers that an ordinary user gets.
///
/// # Errors
/// The kernel's, here and below.
pub fn set_large_buffers(socket: &UdpSocket) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, 4 << 20)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 4 << 20)
}

/// Lets the kernel hand over several datagrams of a flow in one buffer.
///
/// # Errors
/// If this kernel has no UDP GRO.
pub fn enable_gro(socket: &UdpSocket) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Cuts everything sent on the socket into datagrams of `bytes`.
///
/// # Errors
/// If this kernel has no UDP segmentation offload.
pub fn set_segment_size(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(bytes))
}

/// Message headers over buffers of their own, ready for `sendmmsg` and `recvmmsg`.
pub struct Batch {
    headers: Vec<libc::mmsghdr>,
    // The headers point into these three; none is resized or dropped before them.
    iovecs: Box<[libc::iovec]>,
    buffers: Vec<Vec<u8>>,
    _peer: Option<Box<libc::sockaddr_in>>,
}

impl Batch {
    /// `count` messages of `bytes` each, addressed to `peer` unless the socket is connected.
    ///
    /// # Panics
    /// If these are more than [`MAX_BATCH`].
    pub fn new(count: usize, bytes: usize, peer: Option<SocketAddrV4>) -> Batch {
        assert!(count <= MAX_BATCH, "a batch has at most {MAX_BATCH} messages");
        let mut buffers = vec![vec![0x5a_u8; bytes]; count];
        let mut iovecs: Box<[libc::iovec]> = buffers.iter_mut().map(iovec_of).collect();
        let mut peer = peer.map(|p| Box::new(sockaddr(p)));
        let headers = iovecs
            .iter_mut()
            .map(|iov| {
                // SAFETY: an all-zero `mmsghdr` is valid: null pointers with zero lengths.
                let mut header: libc::mmsghdr = unsafe { zeroed() };
                header.msg_hdr.msg_iov = iov;
                header.msg_hdr.msg_iovlen = 1;
                if let Some(peer) = peer.as_deref_mut() {
                    header.msg_hdr.msg_name = ptr::from_mut(peer).cast();
                    header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
                }
                header
            })
            .collect();
        Batch { headers, iovecs, buffers, _peer: peer }
    }

    /// Sends every message; returns how many the kernel took.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        // SAFETY: the headers point to iovecs, buffers and an address that `self` keeps in place,
        // and `vlen` is their number.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                0,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Sends one message of each piece of somebody else's memory; returns how many the kernel took.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If there are more pieces than the batch has messages.
    pub fn send_pieces(&mut self, socket: &UdpSocket, pieces: &[&[u8]]) -> io::Result<usize> {
        for (iovec, piece) in self.iovecs[..pieces.len()].iter_mut().zip(pieces) {
            *iovec =
                libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        }
        // SAFETY: the headers point to iovecs that `self` keeps in place and that point into
        // `pieces`, which are borrowed until the call is over and which it only reads.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), pieces.len() as u32, 0)
        };
        for (iovec, buffer) in self.iovecs.iter_mut().zip(&mut self.buffers) {
            *iovec = iovec_of(buffer);
        }
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// What message `index` of the last receive brought.
    pub fn received(&self, index: usize) -> &[u8] {
        &self.buffers[index][..self.headers[index].msg_len as usize]
    }

    /// Receives what is there (waiting for the first message if `wait`); returns the number of
    /// messages.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::WouldBlock`] if nothing is there.
    pub fn recv(&mut self, socket: &UdpSocket, wait: bool) -> io::Result<usize> {
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: as in `send`; the buffers are writable, and no timeout is passed.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                flags,
                ptr::null_mut(),
            )
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

fn iovec_of(buffer: &mut Vec<u8>) -> libc::iovec {
    libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }
}

fn sockaddr(addr: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// A UDP socket bound to a port of 127.0.0.1 that the kernel picks, with large buffers.
///
/// # Errors
/// If there is no port left.
pub fn loopback_socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_large_buffers(&socket)?;
    Ok(socket)
}
