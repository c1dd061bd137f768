//! Service IDs, and the IP addresses that `rdma_cm` puts before the private data.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The ID of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of a port in a port space: the IP CM service of the standard's annex A11.
    pub const fn of_port(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space.0 as u64) << 16 | port as u64)
    }

    /// The port within its port space.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }

    /// The port space, if the service is that of a port.
    pub const fn space(self) -> Option<PortSpace> {
        if self.0 >> 32 == 0 { Some(PortSpace((self.0 >> 16) as u16)) } else { None }
    }
}

/// A space of port numbers, in `rdma_cm`'s encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// IP over InfiniBand: unreliable datagrams.
    pub const IPOIB: PortSpace = PortSpace(0x0002);
    /// Reliable connections.
    pub const TCP: PortSpace = PortSpace(0x0106);
    /// Unreliable datagrams.
    pub const UDP: PortSpace = PortSpace(0x0111);
    /// Any InfiniBand service.
    pub const IB: PortSpace = PortSpace(0x013f);
}

/// The IP addresses of a request, in the first 36 bytes of its private data.
///
/// The destination's port is in the service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpAddressing {
    /// The source's port.
    pub src_port: u16,
    /// The source's address; of the same family as `dst`.
    pub src: IpAddr,
    /// The destination's address.
    pub dst: IpAddr,
}

impl IpAddressing {
    /// Bytes that it takes.
    pub const LEN: usize = 36;
    const VERSION: u8 = 0;

    /// As bytes. If the families differ, both addresses are written as IPv6.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let (version, src, dst) = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (4, low_word(src), low_word(dst)),
            (src, dst) => (6, as_v6(src).octets(), as_v6(dst).octets()),
        };
        out[0] = Self::VERSION;
        out[1] = version << 4;
        out[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        out[4..20].copy_from_slice(&src);
        out[20..36].copy_from_slice(&dst);
        out
    }

    /// From the start of private data; `None` if that is something else.
    pub fn decode(bytes: &[u8]) -> Option<IpAddressing> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        if bytes[0] != Self::VERSION {
            return None;
        }
        let (src, dst) = (&bytes[4..20], &bytes[20..36]);
        let (src, dst) = match bytes[1] >> 4 {
            4 => (v4_at_end(src)?.into(), v4_at_end(dst)?.into()),
            6 => (v6(src)?.into(), v6(dst)?.into()),
            _ => return None,
        };
        Some(IpAddressing { src_port: u16::from_be_bytes([bytes[2], bytes[3]]), src, dst })
    }
}

/// An IPv4 address in the last of four words.
fn low_word(addr: Ipv4Addr) -> [u8; 16] {
    let mut out = [0; 16];
    out[12..].copy_from_slice(&addr.octets());
    out
}

fn as_v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn v4_at_end(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.last_chunk::<4>().copied().map(Ipv4Addr::from)
}

fn v6(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk::<16>().copied().map(Ipv6Addr::from)
}
