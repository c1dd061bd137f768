//! Which bytes of a message a fragment carries.

/// How a message is divided into fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) mtu: u32,
    /// Bytes of the message.
    pub(super) len: u32,
    /// Blocks that share a fragment, as a power of two.
    pub(super) stride_log2: u8,
}

/// Fewest bytes of a block in a fragment: one 32-bit number.
const MIN_PIECE: u32 = 4;

/// Most blocks that can share a packet.
pub(crate) fn max_stride(mtu: u32) -> u32 {
    mtu / MIN_PIECE
}

impl Layout {
    /// The layout; `None` if this stride is not possible.
    #[inline]
    pub(super) fn new(mtu: u32, len: u32, stride_log2: u8) -> Option<Layout> {
        let fits = stride_log2 == 0 || u32::from(stride_log2) <= max_stride(mtu).ilog2();
        fits.then_some(Layout { mtu, len, stride_log2 })
    }

    /// How many fragments; an empty message has one.
    #[inline]
    pub(super) fn fragments(&self) -> u32 {
        self.len.div_ceil(self.mtu).max(1)
    }

    /// Bytes that fragment `k` carries.
    #[inline]
    pub(super) fn len_of(&self, k: u32) -> u32 {
        let before = u64::from(k) * u64::from(self.mtu);
        u64::from(self.len).saturating_sub(before).min(self.mtu.into()) as u32
    }

    /// Calls `f` with the offset in the message, the offset in the fragment, and the length of each
    /// piece of fragment `k`, until it fails.
    ///
    /// Fragments are interleaved in whole groups, as many per group as the stride: the j-th
    /// fragment of a group carries the j-th part of each of its blocks, which are one MTU long.
    #[inline]
    pub(super) fn try_pieces<E>(
        &self,
        k: u32,
        mut f: impl FnMut(u32, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let contiguous = u64::from(k) * u64::from(self.mtu);
        if self.is_contiguous() {
            return f(contiguous as u32, 0, self.len_of(k) as usize);
        }
        let stride = 1_u64 << self.stride_log2;
        let group_len = stride * u64::from(self.mtu);
        let group = (u64::from(k) >> self.stride_log2) * group_len;
        if group + group_len > self.len.into() {
            return f(contiguous as u32, 0, self.len_of(k) as usize);
        }
        let piece = u64::from(self.mtu) >> self.stride_log2;
        let first = group + (u64::from(k) & (stride - 1)) * piece;
        (0..stride).try_for_each(|block| {
            let offset = first + block * u64::from(self.mtu);
            f(offset as u32, (block * piece) as usize, piece as usize)
        })
    }

    /// Whether fragments `k..k + count` are contiguous in the message.
    #[inline]
    pub(super) fn is_contiguous(&self) -> bool {
        self.stride_log2 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fragments_cover_a_message_once(
            mtu_log2 in 8_u32..=12, len in 0_u32..300_000, stride_log2 in 0_u8..=10,
        ) {
            let mtu = 1 << mtu_log2;
            let Some(layout) = Layout::new(mtu, len, stride_log2) else {
                prop_assert!(1 << stride_log2 > mtu / 4);
                return Ok(());
            };
            let mut seen = vec![0_u8; len as usize];
            for k in 0..layout.fragments() {
                let mut at = 0;
                layout.try_pieces(k, |offset, from, piece| {
                    assert_eq!(from, at);
                    at += piece;
                    seen[offset as usize..][..piece].iter_mut().for_each(|n| *n += 1);
                    Ok::<_, ()>(())
                }).unwrap();
                prop_assert_eq!(at as u32, layout.len_of(k));
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn a_fragment_has_a_part_of_each_block_of_its_group() {
        let layout = Layout::new(256, 1024 + 100, 2).unwrap();
        let pieces = |k| {
            let mut pieces = Vec::new();
            let Ok(()) = layout.try_pieces(k, |at, _, len| {
                pieces.push((at, len));
                Ok::<_, core::convert::Infallible>(())
            });
            pieces
        };
        assert_eq!(pieces(1), [(64, 64), (320, 64), (576, 64), (832, 64)]);
        assert_eq!(pieces(4), [(1024, 100)]);
    }
}
