//! Link-layer headers of captures, which precede the IP header.

use crate::EthernetHeader;
use crate::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// Link layer of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkType {
    /// Ethernet, with or without VLAN tags.
    Ethernet,
    /// The IP header comes first.
    RawIp,
    /// Linux cooked capture, version 1: `tcpdump -i any` until 2018.
    LinuxSll,
    /// Linux cooked capture, version 2: `tcpdump -i any` since.
    LinuxSll2,
    /// BSD loopback: four bytes of address family.
    Loopback,
}

impl LinkType {
    /// The link layer with this number in a capture file's header, if supported.
    pub const fn from_pcap(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            // Raw IP is 101 in files; 12 and 14 are what some BSDs wrote. 228 is IPv4, 229 IPv6.
            12 | 14 | 101 | 228 | 229 => Some(Self::RawIp),
            113 => Some(Self::LinuxSll),
            276 => Some(Self::LinuxSll2),
            0 | 108 => Some(Self::Loopback),
            _ => None,
        }
    }

    /// The link header and what follows, if that is IP.
    pub(super) fn split(self, frame: &[u8]) -> Option<(&[u8], &[u8])> {
        match self {
            Self::RawIp => frame.split_at_checked(0),
            Self::Loopback => frame.split_at_checked(4),
            Self::Ethernet => {
                let header = EthernetHeader::parse(frame).ok()?;
                is_ip(header.ethertype).then(|| frame.split_at_checked(header.header_len()))?
            }
            Self::LinuxSll => split_cooked(frame, 14, 16),
            Self::LinuxSll2 => split_cooked(frame, 0, 20),
        }
    }
}

fn split_cooked(frame: &[u8], ethertype_at: usize, len: usize) -> Option<(&[u8], &[u8])> {
    let (header, rest) = frame.split_at_checked(len)?;
    let ethertype = header.get(ethertype_at..)?.first_chunk()?;
    is_ip(u16::from_be_bytes(*ethertype)).then_some((header, rest))
}

fn is_ip(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
}
