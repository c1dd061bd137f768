//! The addresses of this machine.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Calls `f` with every address of an interface that is up, the interface's name and its flags.
fn for_each(mut f: impl FnMut(&CStr, u32, IpAddr)) {
    let mut list = ptr::null_mut();
    // SAFETY: on success `list` is a list that we free below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return;
    }
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is a non-null element of the list, which is freed only after the loop.
        let ifa = unsafe { &*entry };
        if ifa.ifa_flags & libc::IFF_UP as u32 != 0
            // SAFETY: an element's address is null or a socket address of its family.
            && let Some(addr) = unsafe { address(ifa.ifa_addr) }
        {
            // SAFETY: an element's name is a C string that lives as long as the list.
            f(unsafe { CStr::from_ptr(ifa.ifa_name) }, ifa.ifa_flags, addr);
        }
        entry = ifa.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs` and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
}

/// # Safety
/// `addr` must be null or point to a socket address of the family that it names.
unsafe fn address(addr: *const libc::sockaddr) -> Option<IpAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: not null, and any socket address starts with its family.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a `sockaddr_in`.
            let sin = unsafe { ptr::read_unaligned(addr.cast::<libc::sockaddr_in>()) };
            Some(Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a `sockaddr_in6`.
            let sin6 = unsafe { ptr::read_unaligned(addr.cast::<libc::sockaddr_in6>()) };
            Some(Ipv6Addr::from(sin6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Addresses that can name a NIC: those that other hosts can reach come first, since programs use
/// the first device by default; link-local ones, which need a scope, are left out.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    for_each(|_, _, addr| {
        let is_link_local = matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !is_link_local && !found.contains(&addr) {
            found.push(addr);
        }
    });
    found.sort_by_key(|addr| (addr.is_ipv6(), addr.is_loopback()));
    found
}

/// Name and index of the interface that has an address; the loopback interface has all of
/// 127.0.0.0/8.
pub(crate) fn interface_of(addr: IpAddr) -> Option<(String, u32)> {
    let mut found = None;
    for_each(|name, _, listed| {
        let is_its = listed == addr
            || (listed.is_loopback() && addr.is_loopback() && listed.is_ipv4() == addr.is_ipv4());
        if is_its && found.is_none() {
            // SAFETY: `name` is a C string.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            found = Some((name.to_string_lossy().into_owned(), index));
        }
    });
    found
}
