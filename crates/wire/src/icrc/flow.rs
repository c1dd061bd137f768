//! The IP and UDP headers as the ICRC sees them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ipv6::mapped;
use crate::udp::IP_PROTOCOL_UDP;

/// IPv4 header without options, and UDP header.
pub(super) const IPV4_UDP_LEN: usize = 28;
const IPV6_UDP_LEN: usize = 48;
const UDP_LEN: usize = 8;

/// Addresses and ports of a datagram, as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

/// IP and UDP header, with the fields that routers change replaced by ones.
pub(super) enum MaskedHeaders {
    V4([u8; IPV4_UDP_LEN]),
    V6([u8; IPV6_UDP_LEN]),
}

impl MaskedHeaders {
    #[inline]
    pub(super) fn new(flow: &FlowKey, udp_payload_len: usize, ip_id: u16) -> Self {
        let udp = masked_udp(flow, udp_payload_len);
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Self::V4(masked_ipv4(src, dst, ip_id, udp_payload_len, udp))
            }
            // No datagram mixes address families; mapping is as good an answer as any.
            (src, dst) => Self::V6(masked_ipv6(mapped(src), mapped(dst), udp)),
        }
    }
}

#[inline]
fn masked_udp(flow: &FlowKey, udp_payload_len: usize) -> [u8; UDP_LEN] {
    let mut udp = [0xff; UDP_LEN];
    udp[0..2].copy_from_slice(&flow.src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&flow.dst_port.to_be_bytes());
    udp[4..6].copy_from_slice(&wire_len(udp_payload_len, UDP_LEN));
    udp
}

#[inline]
fn masked_ipv4(
    src: Ipv4Addr,
    dst: Ipv4Addr,
    ip_id: u16,
    udp_payload_len: usize,
    udp: [u8; UDP_LEN],
) -> [u8; IPV4_UDP_LEN] {
    let mut out = [0xff; IPV4_UDP_LEN];
    out[0] = 0x45;
    out[2..4].copy_from_slice(&wire_len(udp_payload_len, IPV4_UDP_LEN));
    out[4..6].copy_from_slice(&ip_id.to_be_bytes());
    out[6..8].copy_from_slice(&[0x40, 0x00]);
    out[9] = IP_PROTOCOL_UDP;
    out[12..16].copy_from_slice(&src.octets());
    out[16..20].copy_from_slice(&dst.octets());
    out[20..28].copy_from_slice(&udp);
    out
}

#[inline]
fn masked_ipv6(src: Ipv6Addr, dst: Ipv6Addr, udp: [u8; UDP_LEN]) -> [u8; IPV6_UDP_LEN] {
    let mut out = [0xff; IPV6_UDP_LEN];
    out[0] = 0x6f;
    out[4..6].copy_from_slice(&udp[4..6]);
    out[6] = IP_PROTOCOL_UDP;
    out[8..24].copy_from_slice(&src.octets());
    out[24..40].copy_from_slice(&dst.octets());
    out[40..48].copy_from_slice(&udp);
    out
}

/// The 16-bit length field of a header that counts itself, truncated for lengths that no datagram
/// can have.
#[inline]
fn wire_len(udp_payload_len: usize, headers: usize) -> [u8; 2] {
    (udp_payload_len.wrapping_add(headers) as u16).to_be_bytes()
}
