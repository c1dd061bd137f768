//! The header before every packet on a TUN device with `IFF_VNET_HDR`: `struct virtio_net_hdr`.

/// Its length in bytes.
pub const VNET_BYTES: usize = 10;

/// The transport checksum covers the pseudo header only; a consumer that needs it completes it.
pub(crate) const NEEDS_CSUM: u8 = 1;

pub(crate) const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;

/// The kernel's description of a packet, in native byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// `VIRTIO_NET_HDR_F_…`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_…`: whether this is several packets in one, and of which kind.
    pub gso_type: u8,
    /// Length of the headers that each packet gets.
    pub hdr_len: u16,
    /// Payload of each packet; that of the last may be shorter.
    pub gso_size: u16,
    /// Where the transport header starts.
    pub csum_start: u16,
    /// Where in it the checksum is.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Reads one.
    pub fn parse(bytes: &[u8; VNET_BYTES]) -> VnetHeader {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; VNET_BYTES] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub(crate) fn needs_checksum(self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_written() {
        let header = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            hdr_len: 28,
            gso_size: 1448,
            csum_start: 20,
            csum_offset: 6,
        };
        assert_eq!(VnetHeader::parse(&header.to_bytes()), header);
    }
}
