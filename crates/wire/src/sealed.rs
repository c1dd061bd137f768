//! The cleartext part of a sealed packet (`docs/sealed.md`).
//!
//! A sealed packet has a BTH whose opcode is [`Opcode::SEALED`]. The BTH's last word and four more
//! bytes hold the key's epoch and the packet's counter. Everything after that is ciphertext.

use crate::{Bth, Opcode, Qpn};

const LEN: usize = Bth::LEN + SealedCounter::LEN;
/// Offset of the epoch: the byte of the BTH with the AckReq bit.
const EPOCH_AT: usize = 8;

/// Bytes of the tag after the ciphertext.
pub const SEALED_TAG_LEN: usize = 16;

/// The low 32 bits of a sealed packet's counter, after the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SealedCounter(pub u32);

impl SealedCounter {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the bits.
    #[inline]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(u32::from_be_bytes(*bytes))
    }

    /// Writes the bits.
    #[inline]
    pub const fn emit(self, out: &mut [u8; Self::LEN]) {
        *out = self.0.to_be_bytes();
    }
}

/// The cleartext header of a sealed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SealedHeader {
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// The low bits of the key's epoch.
    pub epoch: u8,
    /// The packet's number in its direction, at most [`SealedHeader::MAX_COUNTER`].
    pub counter: u64,
}

impl SealedHeader {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;
    /// The counter has 56 bits.
    pub const MAX_COUNTER: u64 = (1 << 56) - 1;

    /// Reads a header; `None` if the packet is not sealed.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        if bytes[0] != Opcode::SEALED.0 {
            return None;
        }
        let [.., q0, q1, q2, epoch, c0, c1, c2, c3, c4, c5, c6] = *bytes;
        let dest_qpn = Qpn::new(u32::from_be_bytes([0, q0, q1, q2]));
        let counter = u64::from_be_bytes([0, c0, c1, c2, c3, c4, c5, c6]);
        Some(Self { dest_qpn, epoch, counter })
    }

    /// Writes the header; the counter is truncated to its width.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        let bth = Bth::new(Opcode::SEALED, self.dest_qpn, crate::Psn::new(0));
        let mut first = [0; Bth::LEN];
        bth.emit(&mut first);
        out[..Bth::LEN].copy_from_slice(&first);
        out[EPOCH_AT..].copy_from_slice(&(self.counter & Self::MAX_COUNTER).to_be_bytes());
        out[EPOCH_AT] = self.epoch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PacketView;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = SealedHeader {
            dest_qpn: Qpn::new(0x12_3456),
            epoch: 0xfe,
            counter: 0x12_3456_789a_bcde,
        };
        let mut bytes = [0; LEN + 4];
        let (first, _) = bytes.split_first_chunk_mut().unwrap();
        header.emit(first);
        assert_eq!(SealedHeader::parse(first), Some(header));
        // Anything that routes by BTH sees a packet for the queue pair.
        let view = PacketView::parse(&bytes).unwrap();
        assert_eq!((view.opcode(), view.dest_qpn()), (Opcode::SEALED, header.dest_qpn));
        bytes[0] = Opcode::RC_ACK.0;
        assert_eq!(SealedHeader::parse(bytes.first_chunk().unwrap()), None);
    }
}
