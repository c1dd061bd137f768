//! UDP sockets with options that the standard library lacks.

use std::io;
use std::mem::{self, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::check;
use super::seqpacket::abstract_addr;

/// Sets an integer socket option.
pub(crate) fn set_int(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: passes the address and size of a live `c_int`.
    check(unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Reads an integer socket option.
pub(crate) fn get_int(fd: RawFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: passes the address of a live `c_int`, and of its size.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// A UDP socket before it is bound.
pub(crate) struct UdpSocketBuilder {
    socket: UdpSocket,
}

impl UdpSocketBuilder {
    /// A non-blocking socket of the address's family.
    pub(crate) fn new(addr: IpAddr) -> io::Result<UdpSocketBuilder> {
        let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` touches no memory.
        let fd = check(unsafe { libc::socket(family, kind, 0) })?;
        // SAFETY: `fd` was just opened as a UDP socket and nobody else owns it.
        let socket = unsafe { UdpSocket::from_raw_fd(fd) };
        Ok(UdpSocketBuilder { socket })
    }

    /// Sets an integer option.
    pub(crate) fn set(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        set_int(self.socket.as_raw_fd(), level, name, value)
    }

    /// Binds the socket.
    pub(crate) fn bind(self, addr: &SockAddr) -> io::Result<UdpSocket> {
        // SAFETY: the pointer and length describe a live socket address.
        check(unsafe { libc::bind(self.socket.as_raw_fd(), addr.as_ptr(), addr.len()) })?;
        Ok(self.socket)
    }
}

/// A socket address as the kernel wants it, of either family.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union SockAddr {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// Room for either family.
    pub(crate) const MAX_LEN: libc::socklen_t = size_of::<SockAddr>() as libc::socklen_t;

    /// No address.
    pub(crate) fn zeroed() -> SockAddr {
        // SAFETY: all members are plain C structs for which zeroes are valid.
        unsafe { mem::zeroed() }
    }

    /// The kernel's form of an address; `scope` matters only for link-local IPv6 addresses.
    #[inline]
    pub(crate) fn new(addr: IpAddr, port: u16, scope: u32) -> SockAddr {
        match addr {
            IpAddr::V4(v4) => SockAddr::zeroed().with_v4(v4, port),
            IpAddr::V6(v6) => SockAddr::zeroed().with_v6(v6, port, scope),
        }
    }

    #[inline]
    fn with_v4(mut self, addr: Ipv4Addr, port: u16) -> SockAddr {
        self.v4 = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.octets()) },
            sin_zero: [0; 8],
        };
        self
    }

    #[inline]
    fn with_v6(mut self, addr: Ipv6Addr, port: u16, scope: u32) -> SockAddr {
        self.v6 = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: addr.octets() },
            sin6_scope_id: if addr.is_unicast_link_local() { scope } else { 0 },
        };
        self
    }

    /// The standard library's form, if the family is one we know.
    #[inline]
    pub(crate) fn to_std(self) -> Option<SocketAddr> {
        // SAFETY: every member starts with the family, and the union is always initialised: it is
        // made by `zeroed` and `new` only and otherwise written by the kernel.
        match i32::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: the family says which member it is; any bytes are a valid `sockaddr_in`.
                let v4 = unsafe { self.v4 };
                let addr = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(addr.into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { self.v6 };
                let addr = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::new(addr.into(), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }

    /// Its address, for a system call.
    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(self).cast()
    }

    /// Length of an address of its family.
    #[inline]
    pub(crate) fn len(&self) -> libc::socklen_t {
        // SAFETY: as in `to_std`.
        let len = match i32::from(unsafe { self.family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        };
        len as libc::socklen_t
    }
}

/// Connects to a socket in the abstract namespace. If the listener does not accept, waits at most
/// `patience`, also in later writes: [`io::ErrorKind::WouldBlock`].
pub(crate) fn connect_abstract(name: &str, patience: Duration) -> io::Result<UnixStream> {
    let (addr, len) = abstract_addr(name)?;
    // SAFETY: `socket` touches no memory.
    let fd =
        check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` was just opened as a unix socket and nobody else owns it.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    stream.set_write_timeout(Some(patience))?;
    // SAFETY: the pointer and length describe the live address.
    check(unsafe { libc::connect(fd, (&raw const addr).cast(), len) })?;
    Ok(stream)
}

/// The user at the other end of a unix socket: the one that connected, or that listens.
pub(crate) fn peer_uid(stream: &impl AsRawFd) -> io::Result<u32> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `cred` and `len` are live, and `len` is the size of `cred`.
    check(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    })?;
    Ok(cred.uid)
}
