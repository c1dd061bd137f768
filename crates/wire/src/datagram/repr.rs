//! A frame as plain values, to be written.

use super::{LinkType, RoceFrame};
use crate::{
    EmitError, EthernetHeader, Ipv4Header, Ipv6Header, Packet, ParseError, UdpHeader, UdpView,
};

/// A frame as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// Link layer header.
    pub link: LinkHeader<'a>,
    /// IP header.
    pub ip: IpHeader,
    /// UDP header.
    pub udp: UdpHeader,
    /// Packet, BTH to ICRC.
    pub packet: Packet<'a>,
    /// What follows the UDP payload: the padding of a short Ethernet frame.
    pub tail: &'a [u8],
}

/// A link layer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkHeader<'a> {
    /// Ethernet.
    Ethernet(EthernetHeader),
    /// A link-layer header that only exists in captures, kept as it is; empty for raw IP.
    Opaque(&'a [u8]),
}

/// An IP header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4Header),
    /// IPv6.
    V6(Ipv6Header),
}

impl IpHeader {
    /// Reads the header at the beginning of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let truncated = ParseError::Truncated { need: Ipv6Header::LEN, have: bytes.len() };
        match bytes.first().map(|first| first >> 4) {
            Some(6) => Ipv6Header::parse(bytes.first_chunk().ok_or(truncated)?).map(Self::V6),
            _ => Ipv4Header::parse(bytes).map(Self::V4),
        }
    }

    /// Bytes on the wire.
    pub fn header_len(&self) -> usize {
        match self {
            Self::V4(header) => header.header_len(),
            Self::V6(_) => Ipv6Header::LEN,
        }
    }

    /// Writes the header to the beginning of `out`.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), EmitError> {
        match self {
            Self::V4(header) => header.emit(out),
            Self::V6(header) => {
                let too_small =
                    EmitError::BufferTooSmall { need: Ipv6Header::LEN, have: out.len() };
                header.emit(out.first_chunk_mut().ok_or(too_small)?);
                Ok(())
            }
        }
    }
}

impl LinkHeader<'_> {
    fn header_len(&self) -> usize {
        match self {
            Self::Ethernet(header) => header.header_len(),
            Self::Opaque(bytes) => bytes.len(),
        }
    }
}

impl<'a> TryFrom<RoceFrame<'a>> for Frame<'a> {
    type Error = ParseError;

    fn try_from(frame: RoceFrame<'a>) -> Result<Self, ParseError> {
        let link = match frame.link_type() {
            LinkType::Ethernet => LinkHeader::Ethernet(EthernetHeader::parse(frame.link_header())?),
            _ => LinkHeader::Opaque(frame.link_header()),
        };
        Ok(Self {
            link,
            ip: IpHeader::parse(frame.ip_header())?,
            udp: UdpHeader::parse(UdpView::as_bytes(&frame.udp())),
            packet: frame.packet()?.into(),
            tail: frame.tail(),
        })
    }
}

impl Frame<'_> {
    /// Bytes of the whole frame.
    pub fn wire_len(&self) -> Result<usize, EmitError> {
        let headers = self.link.header_len() + self.ip.header_len() + UdpHeader::LEN;
        Ok(headers + self.packet.wire_len()? + self.tail.len())
    }

    /// Writes the frame to the beginning of `out` and returns its length. Length and checksum
    /// fields are written as given.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let need = self.wire_len()?;
        let too_small = EmitError::BufferTooSmall { need, have: out.len() };
        let out = out.get_mut(..need).ok_or(too_small)?;
        let (link, rest) = out.split_at_mut_checked(self.link.header_len()).ok_or(too_small)?;
        let (ip, rest) = rest.split_at_mut_checked(self.ip.header_len()).ok_or(too_small)?;
        let (udp, rest) = rest.split_first_chunk_mut().ok_or(too_small)?;
        let (packet, tail) = rest.split_at_mut_checked(self.packet.wire_len()?).ok_or(too_small)?;

        match self.link {
            LinkHeader::Ethernet(header) => header.emit(link)?,
            LinkHeader::Opaque(bytes) => link.copy_from_slice(bytes),
        }
        self.ip.emit(ip)?;
        self.udp.emit(udp);
        self.packet.emit(packet)?;
        tail.copy_from_slice(self.tail);
        Ok(need)
    }
}
