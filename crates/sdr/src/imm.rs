//! The transport immediate of every packet: its message, its number in the message, and a fragment
//! of the user's immediate.

use bowline_nic::ImmSeries;

/// How the 32 bits are divided: message ID, packet offset, fragment of the user's immediate, from
/// the top down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmLayout {
    id_bits: u8,
    offset_bits: u8,
    user_bits: u8,
}

impl ImmLayout {
    /// 1024 messages of up to 1 GiB at 4 KiB per packet, and a user immediate in eight fragments.
    pub const STANDARD: ImmLayout = ImmLayout { id_bits: 10, offset_bits: 18, user_bits: 4 };

    /// Another split. The bits must sum to 32, and those for the user's immediate must divide 32 or
    /// be 0.
    pub const fn new(id_bits: u8, offset_bits: u8, user_bits: u8) -> Option<ImmLayout> {
        let sum = id_bits as u32 + offset_bits as u32 + user_bits as u32;
        let divides = user_bits == 0 || 32 % user_bits == 0;
        if sum != 32 || id_bits == 0 || id_bits > 16 || offset_bits == 0 || !divides {
            return None;
        }
        Some(ImmLayout { id_bits, offset_bits, user_bits })
    }

    /// Bits of each field, from the top down.
    pub const fn bits(self) -> [u8; 3] {
        [self.id_bits, self.offset_bits, self.user_bits]
    }

    /// Messages that can be distinguished at a time.
    #[inline]
    pub const fn ids(self) -> u32 {
        1 << self.id_bits
    }

    /// Packets that a message can have.
    #[inline]
    pub const fn max_packets(self) -> u32 {
        1 << self.offset_bits
    }

    /// Fragments that make up a user immediate; 0 if there is none.
    #[inline]
    pub const fn fragments(self) -> u32 {
        if self.user_bits == 0 { 0 } else { 32 / self.user_bits as u32 }
    }

    /// Splits an immediate: message ID, packet, fragment.
    #[inline]
    pub const fn split(self, imm: u32) -> (u32, u32, u32) {
        let id = imm >> (32 - self.id_bits);
        let packet = imm >> self.user_bits & (self.max_packets() - 1);
        (id, packet, imm & ((1 << self.user_bits) - 1))
    }

    /// The immediates of packets of message `id` from `packet` on.
    #[inline]
    pub const fn series(self, id: u32, packet: u32, user: u32) -> ImmSeries {
        ImmSeries {
            base: id << (32 - self.id_bits),
            first: packet,
            word: user,
            fragment_bits: self.user_bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_must_add_up() {
        assert_eq!(ImmLayout::new(10, 18, 4), Some(ImmLayout::STANDARD));
        assert!(ImmLayout::new(8, 22, 2).is_some());
        assert!(ImmLayout::new(14, 18, 0).is_some(), "without a user immediate");
        for (id, offset, user) in [(10, 18, 5), (10, 19, 4), (0, 28, 4), (17, 15, 0), (10, 19, 3)] {
            assert_eq!(ImmLayout::new(id, offset, user), None, "{id} + {offset} + {user}");
        }
    }

    proptest! {
        #[test]
        fn what_a_series_puts_together_comes_apart(
            bits in prop_oneof![
                Just((10, 18, 4)),
                Just((8, 22, 2)),
                Just((12, 20, 0)),
                Just((9, 15, 8)),
            ],
            id: u32, first: u32, k in 0u32..100, user: u32,
        ) {
            let layout = ImmLayout::new(bits.0, bits.1, bits.2).unwrap();
            let id = id % layout.ids();
            let first = first % (layout.max_packets() - 100);
            let (i, p, fragment) = layout.split(layout.series(id, first, user).imm(k));
            prop_assert_eq!((i, p), (id, first + k));
            let n = layout.fragments().max(1);
            let expected = if bits.2 == 0 { 0 } else {
                (u64::from(user) >> (p % n * u32::from(bits.2)) & ((1 << bits.2) - 1)) as u32
            };
            prop_assert_eq!(fragment, expected);
        }
    }
}
