//! Global route header, which precedes the payload in a receive of unreliable datagrams (IBA volume
//! 1, section 8.3; RoCEv2 annex A17).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{DatagramHeaders, FlowKey, IpHeader, Ipv6Header};

/// Global route header: in RoCEv2 the IPv6 header itself.
pub type Grh = Ipv6Header;

/// The 40 bytes that precede the payload in a receive of unreliable datagrams: over IPv6 the IPv6
/// header, over IPv4 twenty zero bytes and the IPv4 header.
///
/// `payload_len` counts what follows the IP header: UDP header to ICRC. Fields that a socket does
/// not show (identification, flow label) are zero.
pub fn ud_grh(src: IpAddr, dst: IpAddr, tos: u8, ttl: u8, payload_len: u16) -> [u8; Grh::LEN] {
    let mut out = [0; Grh::LEN];
    let flow = FlowKey { src, dst, src_port: 0, dst_port: 0 };
    match (DatagramHeaders { flow, tos, ttl, ip_id: 0 }).ip_header(payload_len) {
        IpHeader::V4(header) => {
            if let Some(place) = out.last_chunk_mut() {
                header.emit_fixed(place);
            }
        }
        IpHeader::V6(header) => header.emit(&mut out),
    }
    out
}

/// A datagram's source, from the 40 bytes before its payload; `None` if they are not such a header.
pub fn ud_source(grh: &[u8; Grh::LEN]) -> Option<IpAddr> {
    match (grh[0] >> 4, grh[20] >> 4) {
        (6, _) => grh[8..].first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).into()),
        (0, 4) => grh[32..].first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_datagram_is_that_of_its_packet() {
        let v4: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let v6: [IpAddr; 2] = [[0x20; 16].into(), [0x30; 16].into()];
        for [src, dst] in [v4, v6] {
            assert_eq!(ud_source(&ud_grh(src, dst, 3, 64, 300)), Some(src));
        }
        assert_eq!(ud_source(&[0; Grh::LEN]), None);
    }
}
