//! Configures an interface.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
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

    /// Brings the interface up.
    pub(crate) fn up(&self, name: &str) -> io::Result<()> {
        let mut request = request_for(name);
        self.call(libc::SIOCGIFFLAGS as _, &mut request)?;
        // SAFETY: a successful SIOCGIFFLAGS has set this member of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        self.call(libc::SIOCSIFFLAGS as _, &mut request)
    }

    pub(crate) fn set_mtu(&self, name: &str, mtu: u32) -> io::Result<()> {
        let mut request = request_for(name);
        request.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).unwrap_or(libc::c_int::MAX);
        self.call(libc::SIOCSIFMTU as _, &mut request)
    }

    /// Sets how many packets may wait to be read.
    ///
    /// By netlink: the older request needs root in the initial namespace.
    pub(crate) fn set_queue_len(&self, name: &str, packets: u32) -> io::Result<()> {
        const LEN: u32 = 40;
        let mut message = Vec::with_capacity(LEN as usize);
        // `struct nlmsghdr`.
        message.extend(LEN.to_ne_bytes());
        message.extend(libc::RTM_NEWLINK.to_ne_bytes());
        message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
        message.extend([0; 8]);
        // `struct ifinfomsg`: any family, no flags.
        message.extend([0; 4]);
        message.extend(index_of(name)?.to_ne_bytes());
        message.extend([0; 8]);
        // `struct rtattr`.
        message.extend(8_u16.to_ne_bytes());
        message.extend(libc::IFLA_TXQLEN.to_ne_bytes());
        message.extend(packets.to_ne_bytes());
        let mut netlink = File::from(socket(libc::AF_NETLINK)?);
        netlink.write_all(&message)?;
        let mut answer = [0; 256];
        let answer_len = netlink.read(&mut answer)?;
        // `struct nlmsgerr` after its header: 0, or a negative error.
        match answer[..answer_len].get(16..20).and_then(|code| code.try_into().ok()) {
            Some(code) => match i32::from_ne_bytes(code) {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(-code)),
            },
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Adds an address, with a prefix of 256 addresses.
    pub(crate) fn add_address(&self, name: &str, addr: IpAddr) -> io::Result<()> {
        match addr {
            IpAddr::V4(addr) => {
                self.call(libc::SIOCSIFADDR as _, &mut with_v4(name, addr))?;
                let mask = Ipv4Addr::new(255, 255, 255, 0);
                self.call(libc::SIOCSIFNETMASK as _, &mut with_v4(name, mask))
            }
            IpAddr::V6(addr) => add_v6(name, addr),
        }
    }

    /// One of `SIOC…`, whose types differ between C libraries.
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
    let mut request = libc::in6_ifreq {
        ifr6_addr: libc::in6_addr { s6_addr: addr.octets() },
        ifr6_prefixlen: 120,
        ifr6_ifindex: index_of(name)? as libc::c_int,
    };
    let socket = socket(libc::AF_INET6)?;
    // SAFETY: on a socket of this family the request reads an `in6_ifreq`, which is alive.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as _, &raw mut request) })?;
    Ok(())
}

fn index_of(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` touches no memory.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` was just opened and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
