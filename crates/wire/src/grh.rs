//! Global route header: what a receiver of unreliable datagrams finds in front of the payload
//! (IBA volume 1, section 8.3; RoCEv2 annex A17).

use core::net::IpAddr;

use crate::{DatagramHeaders, FlowKey, IpHeader, Ipv6Header};

/// Global route header: in RoCEv2 the IPv6 header itself.
pub type Grh = Ipv6Header;

/// The 40 bytes a receiver of unreliable datagrams finds in front of the payload: over IPv6 the
/// IPv6 header, over IPv4 twenty zero bytes and the IPv4 header.
///
/// `payload_len` counts what is behind the IP header: UDP header through ICRC. What a socket does
/// not show (identification, flow label) is zero.
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
