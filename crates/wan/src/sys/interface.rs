//! Giving an interface what it needs to be used.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{check, request_for};

/// Configures interfaces of the namespace of the thread that made it.
pub(crate) struct Configurator {
    v4: OwnedFd,
}

impl Configurator {
    pub(crate) fn new() -> io::Result<Configurator> {
        Ok(Configurator { v4: socket(libc::AF_INET)? })
    }

    /// Lets packets through.
    pub(crate) fn up(&self, name: &str) -> io::Result<()> {
        let mut request = request_for(name);
        self.call(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: a successful SIOCGIFFLAGS has set this member of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        self.call(libc::SIOCSIFFLAGS, &mut request)
    }

    pub(crate) fn set_mtu(&self, name: &str, mtu: u32) -> io::Result<()> {
        let mut request = request_for(name);
        request.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).unwrap_or(libc::c_int::MAX);
        self.call(libc::SIOCSIFMTU, &mut request)
    }

    /// How many packets may wait to be read.
    pub(crate) fn set_queue_len(&self, name: &str, packets: u32) -> io::Result<()> {
        let mut request = request_for(name);
        request.ifr_ifru.ifru_metric = libc::c_int::try_from(packets).unwrap_or(libc::c_int::MAX);
        self.call(libc::SIOCSIFTXQLEN, &mut request)
    }

    /// Gives an address, with 256 on the link.
    pub(crate) fn add_address(&self, name: &str, addr: IpAddr) -> io::Result<()> {
        match addr {
            IpAddr::V4(addr) => {
                self.call(libc::SIOCSIFADDR, &mut with_v4(name, addr))?;
                let mask = Ipv4Addr::new(255, 255, 255, 0);
                self.call(libc::SIOCSIFNETMASK, &mut with_v4(name, mask))
            }
            IpAddr::V6(addr) => add_v6(name, addr),
        }
    }

    fn call(&self, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: these requests read and write the `ifreq` only, which is alive.
        check(unsafe { libc::ioctl(self.v4.as_raw_fd(), what, &raw mut *request) })?;
        Ok(())
    }
}

fn with_v4(name: &str, addr: Ipv4Addr) -> libc::ifreq {
    // SAFETY: `sockaddr_in` is a plain C struct for which zeroes are valid.
    let mut sin: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    sin.sin_family = libc::AF_INET as libc::sa_family_t;
    sin.sin_addr.s_addr = u32::from(addr).to_be();
    let mut request = request_for(name);
    // SAFETY: both types are 16 plain bytes, and a `sockaddr` of this family is a `sockaddr_in`.
    request.ifr_ifru.ifru_addr =
        unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(sin) };
    request
}

fn add_v6(name: &str, addr: Ipv6Addr) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut request = libc::in6_ifreq {
        ifr6_addr: libc::in6_addr { s6_addr: addr.octets() },
        ifr6_prefixlen: 120,
        ifr6_ifindex: index as libc::c_int,
    };
    let socket = socket(libc::AF_INET6)?;
    // SAFETY: on a socket of this family the request reads an `in6_ifreq`, which is alive.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &raw mut request) })?;
    Ok(())
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` touches no memory.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` was just opened and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
