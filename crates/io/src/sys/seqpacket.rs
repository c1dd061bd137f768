//! Sequenced packets between processes of a host, optionally with a descriptor each. No call waits
//! for the other end, whatever flags that end sets.

use std::io;
use std::mem::{self, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// A connection or a listener.
pub(crate) struct SeqPacket {
    fd: OwnedFd,
}

const BACKLOG: libc::c_int = 64;
/// Of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;

impl SeqPacket {
    fn new() -> io::Result<SeqPacket> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` touches no memory.
        let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        Ok(SeqPacket { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Listens under a name in the abstract namespace.
    pub(crate) fn listen(name: &str) -> io::Result<SeqPacket> {
        let socket = SeqPacket::new()?;
        let (addr, len) = abstract_addr(name)?;
        // SAFETY: the pointer and length describe the live address.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const addr).cast(), len) })?;
        // SAFETY: touches no memory.
        check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
        Ok(socket)
    }

    /// Connects to such a name, or fails at once.
    pub(crate) fn connect(name: &str) -> io::Result<SeqPacket> {
        let socket = SeqPacket::new()?;
        let (addr, len) = abstract_addr(name)?;
        // SAFETY: as above.
        check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const addr).cast(), len) })?;
        Ok(socket)
    }

    /// Names the network namespace that it is of; `None` where the kernel cannot say (before
    /// 5.14).
    pub(crate) fn network(&self) -> Option<u64> {
        let mut cookie = 0_u64;
        let mut len = size_of::<u64>() as libc::socklen_t;
        // SAFETY: `cookie` and `len` are live, and `len` is the size of `cookie`.
        let asked = unsafe {
            libc::getsockopt(
                self.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut len,
            )
        };
        (asked == 0).then_some(cookie)
    }

    /// The next pending connection, if any.
    pub(crate) fn accept(&self) -> io::Result<SeqPacket> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let fd =
            check(unsafe { libc::accept4(self.as_raw_fd(), none, std::ptr::null_mut(), flags) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        Ok(SeqPacket { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Sends a packet, with a descriptor if one is given.
    pub(crate) fn send(&self, bytes: &[u8], pass: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut piece =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = Control::new();
        // SAFETY: a plain C struct for which zeros are valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if let Some(fd) = pass {
            control.fill(&mut message, fd.as_raw_fd());
        }
        // SAFETY: the message describes live memory, which the call only reads.
        let sent = unsafe {
            libc::sendmsg(
                self.as_raw_fd(),
                &raw const message,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a packet: returns the number of bytes written to `into`, and the descriptor if
    /// exactly one came with it. Zero bytes mean that the other end is gone. Packets that are too
    /// long, or carry more descriptors, are errors.
    pub(crate) fn recv(&self, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut piece = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let mut control = Control::new();
        // SAFETY: a plain C struct for which zeros are valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message describes live memory that nobody else uses.
        let len = unsafe { libc::recvmsg(self.as_raw_fd(), &raw mut message, flags) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        // Take it in any case, so that it is closed if it is not wanted.
        let passed = control.take(&message);
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((len, passed))
    }
}

impl AsRawFd for SeqPacket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Space for one control message with one descriptor. If more are passed, the kernel closes the
/// others.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

// SAFETY: computes lengths from lengths.
const CONTROL_LEN: usize = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
// SAFETY: as above.
const ONE_FD: usize = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;

impl Control {
    fn new() -> Control {
        Control([0; CONTROL_LEN])
    }

    /// Attaches it to `message` as a control message with one descriptor.
    fn fill(&mut self, message: &mut libc::msghdr, fd: RawFd) {
        message.msg_control = (&raw mut *self).cast();
        message.msg_controllen = CONTROL_LEN as _;
        // SAFETY: there is room for one header and one descriptor, suitably aligned.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const *message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = ONE_FD as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        }
    }

    /// The descriptor in it, as filled in by the kernel.
    fn take(&self, message: &libc::msghdr) -> Option<OwnedFd> {
        // SAFETY: the kernel has set the length of what it has written; the header is looked at
        // only if it is whole, and the descriptor, which nobody else owns, only if the header says
        // that it is there.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const *message);
            if header.is_null()
                || (*header).cmsg_level != libc::SOL_SOCKET
                || (*header).cmsg_type != libc::SCM_RIGHTS
                || ((*header).cmsg_len as usize) < ONE_FD
            {
                return None;
            }
            let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
            Some(OwnedFd::from_raw_fd(fd))
        }
    }
}

/// A name in the abstract namespace, as the kernel wants it.
pub(super) fn abstract_addr(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a plain C struct for which zeroes are valid.
    let mut addr: libc::sockaddr_un = unsafe { mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: that makes the name an abstract one.
    let path = addr.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((addr, len as libc::socklen_t))
}
