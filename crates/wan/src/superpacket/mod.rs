//! Several packets in one (TSO, USO), and parts of them as if they had been segmented.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VNET_BYTES, VnetHeader};

const TCP_MIN_BYTES: usize = 20;
const TCP_CHECKSUM: usize = 16;
const TCP_FLAGS: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const UDP_BYTES: usize = 8;
const UDP_CHECKSUM: usize = 6;
const IPV4_MIN_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;

/// Why bytes from a device are not a packet. The kernel never produces these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too short for the headers that it claims to have.
    #[error("cut off within its headers")]
    Short,
    /// Neither IPv4 nor IPv6, or not the one that it claims to be.
    #[error("its IP version is not what it claims")]
    Version,
    /// A kind of superpacket that was not enabled.
    #[error("an unknown kind of superpacket")]
    Kind,
}

/// How a packet divides into segments: the packets that it would be on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superpacket {
    vnet: VnetHeader,
    shape: Shape,
    /// IP packet, as read.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One packet, of any protocol.
    Single,
    Several(Several),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Several {
    transport: Transport,
    is_v6: bool,
    /// Where the transport header starts.
    l4: usize,
    /// IP and transport headers, which each segment has.
    header_len: usize,
    /// Payload of each segment but the last.
    size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

impl Superpacket {
    /// Parses an IP packet as read from a device.
    ///
    /// # Errors
    /// If it does not match its header.
    pub fn parse(vnet: VnetHeader, packet: &[u8]) -> Result<Superpacket, Malformed> {
        let len = packet.len();
        let shape = match vnet.gso_type {
            GSO_NONE => Shape::Single,
            GSO_TCPV4 | GSO_TCPV6 => Several::parse(vnet, Transport::Tcp, packet)?,
            GSO_UDP_L4 => Several::parse(vnet, Transport::Udp, packet)?,
            _ => return Err(Malformed::Kind),
        };
        Ok(Superpacket { vnet, shape, len })
    }

    /// How many packets it would be on a wire.
    pub fn segments(&self) -> usize {
        match &self.shape {
            Shape::Single => 1,
            Shape::Several(s) => (self.len - s.header_len).div_ceil(s.size).max(1),
        }
    }

    /// Length of one segment, IP header included.
    pub fn segment_len(&self, index: usize) -> usize {
        match &self.shape {
            Shape::Single => self.len,
            Shape::Several(s) => {
                let payload = self.len - s.header_len;
                s.header_len + payload.saturating_sub(index * s.size).min(s.size)
            }
        }
    }

    /// Which bytes of the packet are the payload of these segments: what follows the headers that
    /// [`headers`](Superpacket::headers) returns. The whole packet if it has one segment.
    pub fn payload(&self, segments: &Range<usize>) -> Range<usize> {
        match &self.shape {
            Shape::Single => 0..self.len,
            Shape::Several(s) => {
                let at = |index: usize| (s.header_len + index * s.size).min(self.len);
                at(segments.start)..at(segments.end)
            }
        }
    }

    /// The headers under which these segments leave as one, replacing the contents of `out`: the
    /// device's, then those of IP and transport, if any changed.
    ///
    /// Segmenting the result gives the same packets as segmenting the whole.
    pub fn headers(&self, packet: &[u8], segments: &Range<usize>, out: &mut Vec<u8>) {
        out.clear();
        let Shape::Several(s) = &self.shape else {
            out.extend_from_slice(&self.vnet.to_bytes());
            return;
        };
        let payload = self.payload(segments);
        let vnet = VnetHeader {
            gso_type: if segments.len() > 1 { self.vnet.gso_type } else { GSO_NONE },
            gso_size: if segments.len() > 1 { self.vnet.gso_size } else { 0 },
            hdr_len: s.header_len as u16,
            ..self.vnet
        };
        out.extend_from_slice(&vnet.to_bytes());
        out.extend_from_slice(&packet[..s.header_len]);
        let headers = &mut out[VNET_BYTES..];
        s.set_ip(headers, segments.start, payload.len());
        s.set_transport(headers, segments, payload.len(), segments.end == self.segments());
        s.set_pseudo_checksum(headers, payload.len());
    }

    /// As [`headers`](Superpacket::headers), with the congestion-experienced mark. The returned
    /// bytes follow them, in place of the [`payload`](Superpacket::payload).
    pub fn marked_headers(
        &self,
        packet: &[u8],
        segments: &Range<usize>,
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        self.headers(packet, segments, out);
        let mut payload = self.payload(segments);
        if let Shape::Single = self.shape {
            let ip_len = ip_header_len(packet);
            out.extend_from_slice(&packet[..ip_len]);
            payload.start += ip_len;
        }
        mark_congestion(&mut out[VNET_BYTES..]);
        payload
    }

    /// One complete segment with its checksum computed, as on the wire. For segments that are about
    /// to be corrupted, whose checksum must not be taken on trust.
    pub fn sealed(&self, packet: &[u8], index: usize, out: &mut Vec<u8>) {
        let segments = index..index + 1;
        self.headers(packet, &segments, out);
        out.extend_from_slice(&packet[self.payload(&segments)]);
        if !self.vnet.needs_checksum() {
            return;
        }
        let (start, offset) =
            (usize::from(self.vnet.csum_start), usize::from(self.vnet.csum_offset));
        let is_udp = offset == UDP_CHECKSUM;
        out[..VNET_BYTES].copy_from_slice(&VnetHeader::default().to_bytes());
        let packet = &mut out[VNET_BYTES..];
        if let Some(summed) = packet.get(start..) {
            // The field holds the sum of the pseudo header.
            let sum = match !fold(add_bytes(0, summed)) {
                // In UDP, zero means that there is no checksum (RFC 768).
                0 if is_udp => 0xffff,
                sum => sum,
            };
            if let Some(field) = packet.get_mut(start + offset..start + offset + 2) {
                field.copy_from_slice(&sum.to_be_bytes());
            }
        }
    }
}

impl Several {
    fn parse(vnet: VnetHeader, transport: Transport, packet: &[u8]) -> Result<Shape, Malformed> {
        let is_v6 = match packet.first().ok_or(Malformed::Short)? >> 4 {
            4 => false,
            6 => true,
            _ => return Err(Malformed::Version),
        };
        let expected = match vnet.gso_type {
            GSO_TCPV4 => !is_v6,
            GSO_TCPV6 => is_v6,
            _ => true,
        };
        if !expected {
            return Err(Malformed::Version);
        }
        let l4 = usize::from(vnet.csum_start);
        let (min, checksum) = match transport {
            Transport::Tcp => (TCP_MIN_BYTES, TCP_CHECKSUM),
            Transport::Udp => (UDP_BYTES, UDP_CHECKSUM),
        };
        // Superpackets come with an incomplete checksum, which also tells where the transport
        // header starts.
        if !vnet.needs_checksum() || usize::from(vnet.csum_offset) != checksum {
            return Err(Malformed::Kind);
        }
        let transport_header = packet.get(l4..).filter(|h| h.len() >= min);
        let transport_header = transport_header.ok_or(Malformed::Short)?;
        let transport_len = match transport {
            Transport::Tcp => usize::from(transport_header[12] >> 4) * 4,
            Transport::Udp => UDP_BYTES,
        };
        let ip_len = if is_v6 { IPV6_BYTES } else { IPV4_MIN_BYTES };
        let header_len = l4 + transport_len;
        let size = usize::from(vnet.gso_size);
        if l4 < ip_len || transport_len < min || header_len > packet.len() || size == 0 {
            return Err(Malformed::Short);
        }
        Ok(Shape::Several(Several { transport, is_v6, l4, header_len, size }))
    }

    /// Length, identification and checksum. The identification increases per segment, even with DF,
    /// as in Linux.
    fn set_ip(&self, headers: &mut [u8], first: usize, payload_len: usize) {
        let transport_len = self.header_len - self.l4 + payload_len;
        if self.is_v6 {
            let len = (self.l4 - IPV6_BYTES + transport_len) as u16;
            headers[4..6].copy_from_slice(&len.to_be_bytes());
            return;
        }
        let len = (self.l4 + transport_len) as u16;
        headers[2..4].copy_from_slice(&len.to_be_bytes());
        let id = u16::from_be_bytes([headers[4], headers[5]]).wrapping_add(first as u16);
        headers[4..6].copy_from_slice(&id.to_be_bytes());
        set_ipv4_checksum(&mut headers[..self.l4]);
    }

    fn set_transport(
        &self,
        headers: &mut [u8],
        segments: &Range<usize>,
        payload_len: usize,
        has_last: bool,
    ) {
        let header = &mut headers[self.l4..];
        match self.transport {
            Transport::Tcp => {
                let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                let sequence = sequence.wrapping_add((segments.start * self.size) as u32);
                header[4..8].copy_from_slice(&sequence.to_be_bytes());
                if !has_last {
                    header[TCP_FLAGS] &= !(FIN | PSH);
                }
                if segments.start > 0 {
                    header[TCP_FLAGS] &= !CWR;
                }
            }
            Transport::Udp => {
                let len = (UDP_BYTES + payload_len) as u16;
                header[4..6].copy_from_slice(&len.to_be_bytes());
            }
        }
    }

    /// The sum of the pseudo header, which the checksum field holds until it is completed.
    fn set_pseudo_checksum(&self, headers: &mut [u8], payload_len: usize) {
        let addresses = if self.is_v6 { 8..40 } else { 12..20 };
        let (protocol, field) = match self.transport {
            Transport::Tcp => (6, TCP_CHECKSUM),
            Transport::Udp => (17, UDP_CHECKSUM),
        };
        let len = self.header_len - self.l4 + payload_len;
        let sum = fold(add_bytes(protocol + len as u64, &headers[addresses]));
        let at = self.l4 + field;
        headers[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Length of a packet's IP header, as far as it is there.
fn ip_header_len(packet: &[u8]) -> usize {
    let len = match packet.first() {
        Some(first) if first >> 4 == 4 => usize::from(first & 0xf) * 4,
        _ => IPV6_BYTES,
    };
    len.min(packet.len())
}

/// Whether an IP packet is ECN-capable (RFC 3168).
pub(crate) fn is_ecn_capable(packet: &[u8]) -> bool {
    match packet {
        [first, second, ..] if first >> 4 == 4 => second & 0b11 != 0,
        [first, second, ..] if first >> 4 == 6 => second & 0b11_0000 != 0,
        _ => false,
    }
}

/// Marks an IP packet: congestion experienced.
pub(crate) fn mark_congestion(packet: &mut [u8]) {
    let ip_len = ip_header_len(packet);
    match packet {
        [first, second, ..] if *first >> 4 == 6 => *second |= 0b11_0000,
        [first, second, ..] if *first >> 4 == 4 && ip_len >= IPV4_MIN_BYTES => {
            *second |= 0b11;
            set_ipv4_checksum(&mut packet[..ip_len]);
        }
        _ => {}
    }
}

fn set_ipv4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !fold(add_bytes(0, header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Adds 16-bit words, an odd last byte padded with zero (RFC 1071).
fn add_bytes(sum: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |last| u64::from(*last) << 8);
    words.fold(sum + odd, |sum, word| sum + u64::from(u16::from_be_bytes([word[0], word[1]])))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
