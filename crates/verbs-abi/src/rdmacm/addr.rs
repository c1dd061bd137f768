//! Socket addresses as C programs pass them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::errno::Errno;

/// Reads an address.
///
/// # Safety
/// `addr` must be null or point to a socket address that is as long as its family says.
pub(super) unsafe fn read(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, so an address by the caller's word.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an IPv4 address by its family; it may stand at any alignment.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: an IPv6 address by its family; it may stand at any alignment.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddr::new(IpAddr::V6(ip).to_canonical(), u16::from_be(v6.sin6_port)))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes an address.
pub(super) fn write(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: a plain C struct for which zeroes are valid.
    let mut out: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let place = &raw mut out;
    match addr {
        SocketAddr::V4(v4) => {
            let from = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for every kind of address.
            unsafe { place.cast::<libc::sockaddr_in>().write(from) };
        }
        SocketAddr::V6(v6) => {
            let from = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(from) };
        }
    }
    out
}

/// Bytes of an address of this family.
pub(super) fn len(addr: SocketAddr) -> libc::socklen_t {
    match addr {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>() as libc::socklen_t,
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>() as libc::socklen_t,
    }
}
