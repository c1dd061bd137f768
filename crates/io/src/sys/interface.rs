//! Which interface has an address, and the properties of that interface.

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
    /// The interface's index.
    pub index: u32,
    /// The largest IP packet that the interface carries.
    pub mtu: u32,
}

/// The addresses of this machine that can name a NIC, of interfaces that are up.
///
/// Addresses that other hosts can reach come first, since programs use the first device by default.
/// Link-local IPv6 addresses, which mean nothing without a scope, are left out.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut found: Vec<LocalAddress> = Vec::new();
    for entry in list()?.iter().filter(|e| e.flags & libc::IFF_UP as libc::c_uint != 0) {
        let is_link_local = matches!(entry.addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
        // The same address on two interfaces is one NIC.
        if !is_link_local && !found.iter().any(|known| known.addr == entry.addr) {
            found.push(entry.located(entry.addr)?);
        }
    }
    found.sort_by_key(|local| (local.addr.is_ipv6(), local.addr.is_loopback()));
    Ok(found)
}

/// The interface that has `addr`, which may be any of its addresses; `None` if there is none.
pub fn local_address(addr: IpAddr) -> io::Result<Option<LocalAddress>> {
    let entry = list()?.into_iter().find(|entry| entry.covers(addr));
    entry.map(|e| e.located(addr)).transpose()
}

/// Finds the interface that has `addr`; `None` if there is none.
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

    fn located(&self, addr: IpAddr) -> io::Result<LocalAddress> {
        let Interface { index, mtu } = describe(&self.name)?;
        let interface = self.name.to_string_lossy().into_owned();
        Ok(LocalAddress { addr, interface, index, mtu })
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
    let request = InterfaceQuery::new(name)?.ask(libc::SIOCGIFMTU as _)?;
    // SAFETY: a successful SIOCGIFMTU has set this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(Interface { index, mtu: u32::try_from(mtu).unwrap_or(0) })
}

/// Queries one interface repeatedly.
pub(crate) struct InterfaceQuery {
    socket: OwnedFd,
    name: CString,
}

impl InterfaceQuery {
    /// For the interface that has `addr`; `None` if there is none.
    pub(crate) fn of(addr: IpAddr) -> io::Result<Option<InterfaceQuery>> {
        let entry = list()?.into_iter().find(|entry| entry.covers(addr));
        entry.map(|e| InterfaceQuery::new(&e.name)).transpose()
    }

    fn new(name: &CStr) -> io::Result<InterfaceQuery> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: `socket` touches no memory.
        let fd = check(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(InterfaceQuery { socket, name: name.to_owned() })
    }

    /// Whether the interface is up and has a carrier.
    pub(crate) fn is_running(&self) -> io::Result<bool> {
        let request = self.ask(libc::SIOCGIFFLAGS as _)?;
        // SAFETY: a successful SIOCGIFFLAGS has set this member of the union.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0)
    }

    /// Its Ethernet address; `None` if it is not an Ethernet interface.
    pub(crate) fn ethernet_addr(&self) -> io::Result<Option<[u8; 6]>> {
        let request = self.ask(libc::SIOCGIFHWADDR as _)?;
        // SAFETY: a successful SIOCGIFHWADDR has set this member of the union.
        let addr = unsafe { request.ifr_ifru.ifru_hwaddr };
        let is_ethernet = addr.sa_family == libc::ARPHRD_ETHER;
        Ok(is_ethernet.then(|| std::array::from_fn(|i| addr.sa_data[i] as u8)))
    }

    /// The number of its receive queues; one if unknown.
    pub(crate) fn receive_queues(&self) -> u32 {
        /// The kernel's `struct ethtool_channels`: the command, four limits, four counts.
        #[repr(C)]
        struct Channels {
            command: u32,
            max: [u32; 4],
            rx: u32,
            tx: u32,
            other: u32,
            combined: u32,
        }
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            max: [0; 4],
            rx: 0,
            tx: 0,
            other: 0,
            combined: 0,
        };
        let mut request = self.request();
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: the `ifreq` is alive, and points to a live structure of the command's that the
        // kernel fills in.
        let asked = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request)
        };
        if check(asked).is_ok() { (channels.rx + channels.combined).max(1) } else { 1 }
    }

    /// The answer to one of `SIOCGIF…`, whose types differ between C libraries.
    fn ask(&self, what: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut request = self.request();
        // SAFETY: these read the name from and write a member to the `ifreq`, which is alive.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), what, &raw mut request) })?;
        Ok(request)
    }

    /// A request that names the interface and nothing else.
    fn request(&self) -> libc::ifreq {
        // SAFETY: `ifreq` is a plain C struct for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.to_bytes()) {
            *to = *from as libc::c_char;
        }
        request
    }
}
