//! Netlink: the neighbour by which the kernel would reach an address, and its Ethernet address.
//!
//! The kernel answers such requests before the call that sends them returns, so nothing here
//! blocks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// The kernel's `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct rtmsg`, and of `struct ndmsg`.
const BODY: usize = 12;
/// `NUD_VALID`: states in which a neighbour's address can be used.
const USABLE: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// The next hop of packets for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// This address, the destination itself or a router, by the queried interface.
    Via(IpAddr),
    /// None by that interface: no route, or the address is this host's own.
    None,
}

/// Queries about the neighbours of one interface.
pub(crate) struct Neighbours {
    socket: OwnedFd,
    interface: u32,
}

impl Neighbours {
    /// For the interface with this index.
    pub(crate) fn of(interface: u32) -> io::Result<Neighbours> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` touches no memory.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        Ok(Neighbours { socket: unsafe { OwnedFd::from_raw_fd(fd) }, interface })
    }

    /// The next hop of packets for `dst`.
    pub(crate) fn hop(&self, dst: IpAddr) -> Hop {
        let mut body = [0; BODY];
        body[0] = family(dst);
        body[1] = if dst.is_ipv4() { 32 } else { 128 };
        let mut request = Request::new(libc::RTM_GETROUTE, 0, body);
        request.push_addr(libc::RTA_DST, dst);
        request.push(libc::RTA_OIF, &self.interface.to_ne_bytes());
        let Ok(answer) = self.ask(request) else { return Hop::None };
        // `rtm_type` is byte 7 of the body.
        if answer.body().get(7) != Some(&libc::RTN_UNICAST) {
            return Hop::None;
        }
        let out = answer.attribute(libc::RTA_OIF).and_then(|b| b.try_into().ok());
        if out.map(u32::from_ne_bytes) != Some(self.interface) {
            return Hop::None;
        }
        let gateway = answer.attribute(libc::RTA_GATEWAY).and_then(to_addr);
        Hop::Via(gateway.unwrap_or(dst))
    }

    /// The Ethernet address of a neighbour, if the kernel knows it.
    pub(crate) fn ethernet_addr(&self, neighbour: IpAddr) -> Option<[u8; 6]> {
        let request = self.about(libc::RTM_GETNEIGH, 0, neighbour, 0);
        let answer = self.ask(request).ok()?;
        let state = u16::from_ne_bytes(answer.body().get(8..10)?.try_into().ok()?);
        let addr = answer.attribute(libc::NDA_LLADDR).filter(|_| state & USABLE != 0)?;
        addr.try_into().ok()
    }

    /// Tells the kernel that a neighbour is in use, so that it resolves the address if it does not
    /// know it, and revalidates it from time to time.
    pub(crate) fn call(&self, neighbour: IpAddr) {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_ACK;
        let request = self.about(libc::RTM_NEWNEIGH, flags, neighbour, libc::NTF_USE);
        // A refusal is harmless: the address stays unknown, and is requested again.
        let _ = self.ask(request);
    }

    fn about(&self, kind: u16, flags: libc::c_int, neighbour: IpAddr, use_flags: u8) -> Request {
        let mut body = [0; BODY];
        body[0] = family(neighbour);
        body[4..8].copy_from_slice(&self.interface.to_ne_bytes());
        body[10] = use_flags;
        let mut request = Request::new(kind, flags, body);
        request.push_addr(libc::NDA_DST, neighbour);
        request
    }

    fn ask(&self, request: Request) -> io::Result<Answer> {
        let fd = self.socket.as_raw_fd();
        let bytes = request.finish();
        // SAFETY: sends the bytes of a live vector.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = vec![0; 4096];
        // SAFETY: receives at most as many bytes as the vector has.
        let got = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        answer.truncate(got as usize);
        Answer::check(answer)
    }
}

fn family(addr: IpAddr) -> u8 {
    (if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn to_addr(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// A message to the kernel.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: libc::c_int, body: [u8; BODY]) -> Request {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&body);
        Request(bytes)
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn push_addr(&mut self, kind: u16, addr: IpAddr) {
        match addr {
            IpAddr::V4(v4) => self.push(kind, &v4.octets()),
            IpAddr::V6(v6) => self.push(kind, &v6.octets()),
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// The kernel's reply.
struct Answer(Vec<u8>);

impl Answer {
    /// Accepts a reply that is not an error.
    fn check(bytes: Vec<u8>) -> io::Result<Answer> {
        let kind = bytes.get(4..6).map(|k| u16::from_ne_bytes([k[0], k[1]]));
        let code = bytes.get(HEADER..HEADER + 4).and_then(|c| c.try_into().ok());
        match (kind, code.map(i32::from_ne_bytes)) {
            (Some(kind), Some(code)) if i32::from(kind) == libc::NLMSG_ERROR && code != 0 => {
                Err(io::Error::from_raw_os_error(-code))
            }
            (Some(_), Some(_)) => Ok(Answer(bytes)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn body(&self) -> &[u8] {
        self.0.get(HEADER..HEADER + BODY).unwrap_or_default()
    }

    /// The value of the first attribute of a kind.
    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = self.0.get(HEADER + BODY..)?;
        while let Some((head, _)) = rest.split_first_chunk::<4>() {
            let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let value = rest.get(4..len)?;
            if u16::from_ne_bytes([head[2], head[3]]) == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_this_hosts_own_has_no_hop() {
        let neighbours = Neighbours::of(1).unwrap();
        assert_eq!(neighbours.hop("127.0.0.1".parse().unwrap()), Hop::None);
        assert_eq!(neighbours.ethernet_addr("192.0.2.9".parse().unwrap()), None);
    }

    #[test]
    fn attributes_are_found_and_cut_answers_have_none() {
        let mut request = Request::new(1, 0, [7; BODY]);
        request.push(3, &[1, 2, 3]);
        request.push(5, &[9; 6]);
        let bytes = request.finish();
        let answer = Answer(bytes.clone());
        assert_eq!(answer.attribute(3), Some(&[1, 2, 3][..]));
        assert_eq!(answer.attribute(5), Some(&[9; 6][..]));
        assert_eq!(answer.attribute(4), None);
        for len in 0..bytes.len() {
            let cut = Answer(bytes[..len].to_vec());
            assert!(cut.attribute(5).is_none() || len >= bytes.len() - 2, "{len}");
        }
        // A length that would not advance, or leads outside.
        for len in [0_u16, 3, 200] {
            let mut wrong = bytes.clone();
            wrong[HEADER + BODY..][..2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Answer(wrong).attribute(5), None);
        }
    }
}
