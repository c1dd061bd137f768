//! UDP header (RFC 768).

use core::net::IpAddr;

use crate::checksum::Sum;
use crate::view::{be16, put};

const LEN: usize = 8;

/// Protocol number of UDP in an IP header.
pub(crate) const IP_PROTOCOL_UDP: u8 = 17;

header_views! {
    "a UDP header", UdpView, UdpMut, LEN;
    /// Source port.
    src_port, set_src_port: u16 {
        get |b| be16(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
    /// Destination port.
    dst_port, set_dst_port: u16 {
        get |b| be16(b, 2);
        set |b, v| put(b, 2, v.to_be_bytes());
    }
    /// Bytes of header and payload.
    datagram_len, set_datagram_len: u16 {
        get |b| be16(b, 4);
        set |b, v| put(b, 4, v.to_be_bytes());
    }
    /// Checksum; 0 means that there is none.
    checksum, set_checksum: u16 {
        get |b| be16(b, 6);
        set |b, v| put(b, 6, v.to_be_bytes());
    }
}

/// UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// Checksum as on the wire. 0 means that there is none; a frame captured before a device with
    /// checksum offload has a partial one. See [`UdpHeader::with_checksum`].
    pub checksum: u16,
}

impl UdpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = UdpView::of(bytes);
        Self {
            src_port: v.src_port(),
            dst_port: v.dst_port(),
            len: v.datagram_len(),
            checksum: v.checksum(),
        }
    }

    /// Writes the header, with the checksum field as given.
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = UdpMut::of(out);
        v.set_src_port(self.src_port);
        v.set_dst_port(self.dst_port);
        v.set_datagram_len(self.len);
        v.set_checksum(self.checksum);
    }

    /// The same header with the correct checksum for these addresses and this payload.
    pub fn with_checksum(mut self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> Self {
        self.checksum = 0;
        let mut header = [0; LEN];
        self.emit(&mut header);
        let sum = add_address(add_address(Sum::default(), src), dst)
            .word(u16::from(IP_PROTOCOL_UDP))
            .word(self.len)
            .bytes(&header)
            .bytes(payload)
            .finish();
        // A sum of zero is sent as its complement, since zero would mean that there is none.
        self.checksum = if sum == 0 { 0xffff } else { sum };
        self
    }
}

fn add_address(sum: Sum, addr: IpAddr) -> Sum {
    match addr {
        IpAddr::V4(v4) => sum.bytes(&v4.octets()),
        IpAddr::V6(v6) => sum.bytes(&v6.octets()),
    }
}
