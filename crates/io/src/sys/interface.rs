//! Which interface has an address, and what that interface carries.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use super::check;

/// What a port needs to know of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Its index, which names it in link-local IPv6 addresses.
    pub(crate) index: u32,
    /// The largest IP packet it carries.
    pub(crate) mtu: u32,
}

/// An address of this machine, and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub addr: IpAddr,
    /// The interface's name.
    pub interface: String,
    /// The largest IP packet that the interface carries.
    pub mtu: u32,
}

/// All addresses of interfaces that are up, loopback included, in the kernel's order.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut found = Vec::new();
    for entry in list()?.into_iter().filter(|e| e.flags & libc::IFF_UP as libc::c_uint != 0) {
        let mtu = describe(&entry.name)?.mtu;
        let interface = entry.name.to_string_lossy().into_owned();
        found.push(LocalAddress { addr: entry.addr, interface, mtu });
    }
    Ok(found)
}

/// Finds the interface that has `addr`; `None` if none has.
pub(crate) fn interface_of(addr: IpAddr) -> io::Result<Option<Interface>> {
    let entry = list()?.into_iter().find(|entry| entry.covers(addr));
    entry.map(|e| describe(&e.name)).transpose()
}

/// One address of one interface.
struct Entry {
    name: CString,
    addr: IpAddr,
    flags: libc::c_uint,
}

impl Entry {
    /// Whether the address is `addr`. The loopback interface owns the whole of 127.0.0.0/8, of
    /// which it lists one address only.
    fn covers(&self, addr: IpAddr) -> bool {
        let is_loopback = self.flags & libc::IFF_LOOPBACK as libc::c_uint != 0;
        let both_v4 = self.addr.is_ipv4() && addr.is_ipv4();
        self.addr == addr
            || (is_loopback && both_v4 && self.addr.is_loopback() && addr.is_loopback())
    }
}

/// Every IP address of every interface.
fn list() -> io::Result<Vec<Entry>> {
    let mut list = ptr::null_mut();
    // SAFETY: on success `list` is a list that we free below.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut entries = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is a non-null element of the list, which is freed only after the loop.
        let ifa = unsafe { &*next };
        // SAFETY: addresses in the list are null or point to socket addresses of their family.
        if let Some(addr) = unsafe { address_of(ifa) } {
            // SAFETY: an element's name is a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(ifa.ifa_name) }.to_owned();
            entries.push(Entry { name, addr, flags: ifa.ifa_flags });
        }
        next = ifa.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs` and no reference into it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(entries)
}

/// The element's IP address, if it has one.
///
/// # Safety
/// `ifa.ifa_addr` must be null or point to a socket address of the family that it names.
unsafe fn address_of(ifa: &libc::ifaddrs) -> Option<IpAddr> {
    if ifa.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: not null, and any socket address starts with its family.
    match i32::from(unsafe { (*ifa.ifa_addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a `sockaddr_in`.
            let sin = unsafe { ptr::read_unaligned(ifa.ifa_addr.cast::<libc::sockaddr_in>()) };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a `sockaddr_in6`.
            let sin6 = unsafe { ptr::read_unaligned(ifa.ifa_addr.cast::<libc::sockaddr_in6>()) };
            Some(IpAddr::V6(Ipv6Addr::from(sin6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

fn describe(name: &CStr) -> io::Result<Interface> {
    // SAFETY: `name` is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` touches no memory.
    let fd =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` was just opened and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `ifreq` is a plain C struct for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name from and writes the MTU to the `ifreq`, which is alive.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: a successful SIOCGIFMTU has set this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(Interface { index, mtu: u32::try_from(mtu).unwrap_or(0) })
}
