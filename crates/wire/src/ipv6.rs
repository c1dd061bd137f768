//! IPv6 header (RFC 8200), which is the global route header of InfiniBand by another name.

use core::net::{IpAddr, Ipv6Addr};

use crate::ParseError;
use crate::view::{be16, be32, chunk, put, with_bits};

const LEN: usize = 40;
const FLOW_LABEL: u32 = 0x000f_ffff;

header_views! {
    "an IPv6 header", Ipv6View, Ipv6Mut, LEN;
    /// IP version, 4 bits: 6.
    version, set_version: u8 {
        get |b| b[0] >> 4;
        set |b, v| b[0] = with_bits(b[0], 0xf0, v << 4);
    }
    /// Traffic class: DSCP and ECN.
    traffic_class, set_traffic_class: u8 {
        get |b| (be16(b, 0) >> 4) as u8;
        set |b, v| put(b, 0, ((be16(b, 0) & 0xf00f) | ((v as u16) << 4)).to_be_bytes());
    }
    /// Flow label, 20 bits.
    flow_label, set_flow_label: u32 {
        get |b| be32(b, 0) & FLOW_LABEL;
        set |b, v| put(b, 0, ((be32(b, 0) & !FLOW_LABEL) | (v & FLOW_LABEL)).to_be_bytes());
    }
    /// Bytes after this header.
    payload_len, set_payload_len: u16 {
        get |b| be16(b, 4);
        set |b, v| put(b, 4, v.to_be_bytes());
    }
    /// Protocol of the next header.
    next_header, set_next_header: u8 {
        get |b| b[6];
        set |b, v| b[6] = v;
    }
    /// Hop limit.
    hop_limit, set_hop_limit: u8 {
        get |b| b[7];
        set |b, v| b[7] = v;
    }
    /// Source address.
    src, set_src: Ipv6Addr {
        get |b| Ipv6Addr::from_bits(u128::from_be_bytes(chunk(b, 8)));
        set |b, v| put(b, 8, v.octets());
    }
    /// Destination address.
    dst, set_dst: Ipv6Addr {
        get |b| Ipv6Addr::from_bits(u128::from_be_bytes(chunk(b, 24)));
        set |b, v| put(b, 24, v.octets());
    }
}

/// IPv6 header, without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Header {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// Protocol of the next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header; its version must be 6.
    pub const fn parse(bytes: &[u8; LEN]) -> Result<Self, ParseError> {
        let v = Ipv6View::of(bytes);
        if v.version() != 6 {
            return Err(ParseError::BadIpVersion(v.version()));
        }
        Ok(Self {
            traffic_class: v.traffic_class(),
            flow_label: v.flow_label(),
            payload_len: v.payload_len(),
            next_header: v.next_header(),
            hop_limit: v.hop_limit(),
            src: v.src(),
            dst: v.dst(),
        })
    }

    /// Writes the header; fields are truncated to their widths.
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = Ipv6Mut::of(out);
        v.set_version(6);
        v.set_traffic_class(self.traffic_class);
        v.set_flow_label(self.flow_label);
        v.set_payload_len(self.payload_len);
        v.set_next_header(self.next_header);
        v.set_hop_limit(self.hop_limit);
        v.set_src(self.src);
        v.set_dst(self.dst);
    }
}

/// The address as IPv6; an IPv4 one is mapped.
#[inline]
pub(crate) fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
