//! Builds IP and UDP headers for a payload from a socket, for writing captures.

use core::net::IpAddr;

use super::IpHeader;
use crate::ipv6::mapped;
use crate::udp::IP_PROTOCOL_UDP;
use crate::{EmitError, FlowKey, Ipv4Header, Ipv4Options, Ipv6Header, UdpHeader};

/// Most bytes of IP and UDP headers without options.
pub const IP_UDP_MAX_LEN: usize = Ipv6Header::LEN + UdpHeader::LEN;

/// The IPv4 length field includes its own header, unlike that of IPv6.
const IPV4_MAX_PAYLOAD: u16 = u16::MAX - Ipv4Header::MIN_LEN as u16;

/// The values for a datagram's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramHeaders {
    /// Addresses and ports. Mixed address families are written as IPv6, with IPv4 ones mapped.
    pub flow: FlowKey,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 identification; unused on IPv6.
    pub ip_id: u16,
}

/// Writes IP header (DF set, no options) and UDP header for `udp_payload`, with correct checksums,
/// and returns the 28 or 48 bytes written.
pub fn emit_ip_udp_headers<'o>(
    headers: &DatagramHeaders,
    udp_payload: &[u8],
    out: &'o mut [u8; IP_UDP_MAX_LEN],
) -> Result<&'o [u8], EmitError> {
    let flow = headers.flow;
    let too_long = EmitError::TooLong { len: udp_payload.len() };
    let udp_len = u16::try_from(udp_payload.len() + UdpHeader::LEN).map_err(|_| too_long)?;
    let ip = headers.ip_header(udp_len);
    if matches!(ip, IpHeader::V4(_)) && udp_len > IPV4_MAX_PAYLOAD {
        return Err(too_long);
    }
    let (src, dst) = addresses(&ip);
    let udp =
        UdpHeader { src_port: flow.src_port, dst_port: flow.dst_port, len: udp_len, checksum: 0 }
            .with_checksum(src, dst, udp_payload);

    let ip_len = ip.header_len();
    let need = ip_len + UdpHeader::LEN;
    let too_small = EmitError::BufferTooSmall { need, have: out.len() };
    let (ip_out, rest) = out.split_at_mut_checked(ip_len).ok_or(too_small)?;
    ip.emit(ip_out)?;
    udp.emit(rest.first_chunk_mut().ok_or(too_small)?);
    out.get(..need).ok_or(too_small)
}

impl DatagramHeaders {
    /// The IP header of a UDP datagram of `udp_len` bytes, UDP header included.
    pub(crate) fn ip_header(&self, udp_len: u16) -> IpHeader {
        match (self.flow.src, self.flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = Ipv4Header {
                    tos: self.tos,
                    total_len: udp_len.saturating_add(Ipv4Header::MIN_LEN as u16),
                    id: self.ip_id,
                    reserved_flag: false,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: self.ttl,
                    protocol: IP_PROTOCOL_UDP,
                    checksum: 0,
                    src,
                    dst,
                    options: Ipv4Options::EMPTY,
                };
                IpHeader::V4(header.with_checksum())
            }
            (src, dst) => IpHeader::V6(Ipv6Header {
                traffic_class: self.tos,
                flow_label: 0,
                payload_len: udp_len,
                next_header: IP_PROTOCOL_UDP,
                hop_limit: self.ttl,
                src: mapped(src),
                dst: mapped(dst),
            }),
        }
    }
}

fn addresses(ip: &IpHeader) -> (IpAddr, IpAddr) {
    match ip {
        IpHeader::V4(header) => (IpAddr::V4(header.src), IpAddr::V4(header.dst)),
        IpHeader::V6(header) => (IpAddr::V6(header.src), IpAddr::V6(header.dst)),
    }
}
