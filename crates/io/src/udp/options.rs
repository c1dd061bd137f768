//! The socket options, each with its reason.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, SOL_UDP, c_int};

use super::{Sharing, UdpConfig};
use crate::port::PortError;
use crate::sys::{SockAddr, UdpSocketBuilder, set_int};

/// `UDP_MAX_SEGMENTS` of all kernels with segmentation offload, and of those since 6.9.
const SEGMENTS_OLD: u16 = 64;
const SEGMENTS_NEW: u16 = 128;

/// A bound socket with all options that a port needs.
pub(super) fn bind(config: &UdpConfig, scope: u32) -> Result<UdpSocket, PortError> {
    let builder =
        UdpSocketBuilder::new(config.addr).map_err(PortError::os("making a UDP socket"))?;
    set_required(&builder, config.addr).map_err(PortError::os("setting up a UDP socket"))?;
    set_optional(&builder, config, scope);
    let shared = matches!(config.sharing, Sharing::SameUser { .. });
    if shared {
        builder
            .set(SOL_SOCKET, libc::SO_REUSEPORT, 1)
            .map_err(PortError::os("sharing the UDP port"))?;
    }
    let addr = SockAddr::new(config.addr, config.udp_port, scope);
    builder.bind(&addr).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => PortError::InUse {
            addr: config.addr,
            udp_port: config.udp_port,
            hint: if shared {
                "another user, or a program that does not share, receives RoCEv2 there (`ss -ulpn` \
                 as root names it); stop it, or use another address"
            } else {
                "another program receives RoCEv2 there (`ss -ulpn` names it); stop it, or use \
                 another address"
            },
        },
        Some(libc::EADDRNOTAVAIL) => PortError::NotLocal(config.addr),
        _ => PortError::Os { what: "binding a UDP socket", source },
    })
}

/// A socket that receives a multicast group on an interface, with all options that frames need.
/// Other sockets on this host may receive it too.
pub(super) fn bind_group(config: &UdpConfig, group: IpAddr, scope: u32) -> io::Result<UdpSocket> {
    let addr = config.addr;
    let builder = UdpSocketBuilder::new(addr)?;
    set_required(&builder, addr)?;
    set_optional(&builder, config, scope);
    builder.set(SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let socket = builder.bind(&SockAddr::new(group, config.udp_port, scope))?;
    match (group, addr) {
        (IpAddr::V4(group), IpAddr::V4(addr)) => socket.join_multicast_v4(&group, &addr)?,
        (IpAddr::V6(group), IpAddr::V6(_)) => socket.join_multicast_v6(&group, scope)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(socket)
}

/// Options that a port cannot work without.
fn set_required(socket: &UdpSocketBuilder, addr: IpAddr) -> io::Result<()> {
    // PROBE sets DF, which the ICRC covers and which makes the kernel number a burst's packets from
    // 0; it also ignores path MTUs, which anybody could forge.
    match addr {
        IpAddr::V4(_) => {
            socket.set(IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            socket.set(IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            socket.set(IPPROTO_IP, libc::IP_RECVTTL, 1)
        }
        IpAddr::V6(_) => {
            socket.set(IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            socket.set(IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            socket.set(IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
            socket.set(IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            socket.set(IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)
        }
    }
}

/// Options that make a port faster or its counters more accurate; a kernel without them is good
/// enough.
fn set_optional(socket: &UdpSocketBuilder, config: &UdpConfig, scope: u32) {
    let try_set = |level: c_int, name: c_int, value: c_int| {
        let _ = socket.set(level, name, value);
    };
    // The unprivileged request first: it is clamped to a limit that the privileged one passes.
    let recv = c_int::try_from(config.recv_buffer_bytes).unwrap_or(c_int::MAX);
    let send = c_int::try_from(config.send_buffer_bytes).unwrap_or(c_int::MAX);
    try_set(SOL_SOCKET, libc::SO_RCVBUF, recv);
    try_set(SOL_SOCKET, libc::SO_RCVBUFFORCE, recv);
    try_set(SOL_SOCKET, libc::SO_SNDBUF, send);
    try_set(SOL_SOCKET, libc::SO_SNDBUFFORCE, send);
    try_set(SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    if config.gro {
        try_set(SOL_UDP, libc::UDP_GRO, 1);
    }
    // Multicast leaves by the interface of the address, whatever the routes say.
    match config.addr {
        IpAddr::V4(addr) => {
            let addr = c_int::from_ne_bytes(addr.octets());
            try_set(IPPROTO_IP, libc::IP_MULTICAST_IF, addr);
        }
        IpAddr::V6(_) => try_set(IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, scope as c_int),
    }
    if config.addr.is_ipv6() {
        // Soft-RoCE sends checksum 0 over IPv6; the ICRC protects more than the checksum would.
        try_set(SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
    }
}

/// How many packets the kernel takes in one burst; `None` without segmentation offload.
pub(super) fn probe_gso(socket: &UdpSocket) -> Option<u16> {
    // 0 is the default: this only asks whether the option exists.
    set_int(socket.as_raw_fd(), SOL_UDP, libc::UDP_SEGMENT, 0).ok()?;
    let takes_new_limit = sends_segments(usize::from(SEGMENTS_NEW)).unwrap_or(false);
    Some(if takes_new_limit { SEGMENTS_NEW } else { SEGMENTS_OLD })
}

/// Tries a burst of `count` one-byte packets from a socket to itself.
fn sends_segments(count: usize) -> io::Result<bool> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    set_int(socket.as_raw_fd(), SOL_UDP, libc::UDP_SEGMENT, 1)?;
    let bytes = vec![0; count];
    Ok(socket.send_to(&bytes, socket.local_addr()?).is_ok())
}
