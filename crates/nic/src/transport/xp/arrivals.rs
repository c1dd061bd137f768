//! Which fragments of a message have arrived.

use super::layout::Layout;

/// Arrived fragments: all before the first missing one, and some after it.
///
/// A message whose fragments come in order needs only the prefix. The bitmap is kept elsewhere, and
/// used once a fragment is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// Fragments that have arrived without a gap, from the first on.
    prefix: u32,
    has_gaps: bool,
}

impl Arrivals {
    /// Whether fragment `k` has arrived.
    #[inline]
    pub(super) fn has(&self, bits: &[u64], k: u32) -> bool {
        k < self.prefix || (self.has_gaps && bits[k as usize / 64] >> (k % 64) & 1 != 0)
    }

    /// Fragment `k` of a message of `fragments` arrives for the first time.
    #[inline]
    pub(super) fn mark(&mut self, bits: &mut Vec<u64>, k: u32, fragments: u32) {
        if k != self.prefix {
            if !self.has_gaps {
                self.has_gaps = true;
                bits.clear();
                bits.resize(fragments.div_ceil(64) as usize, 0);
            }
            bits[k as usize / 64] |= 1 << (k % 64);
            return;
        }
        self.prefix += 1;
        while self.has_gaps && self.prefix < fragments && self.has(bits, self.prefix) {
            self.prefix += 1;
        }
    }

    /// Marks fragment `k` if that needs no bitmap; returns whether it did.
    #[inline]
    pub(super) fn mark_next(&mut self, k: u32) -> bool {
        let next = k == self.prefix && !self.has_gaps;
        self.prefix += u32::from(next);
        next
    }

    /// Whether the message is whole once `k`, which is missing, has arrived.
    pub(super) fn completes(&self, bits: &[u64], k: u32, fragments: u32) -> bool {
        if k != self.prefix {
            return false;
        }
        (k + 1..fragments).all(|k| self.has(bits, k))
    }

    /// Bytes that have arrived.
    pub(super) fn bytes(&self, bits: &[u64], layout: &Layout) -> u32 {
        let before = u64::from(self.prefix) * u64::from(layout.mtu);
        let before = before.min(layout.len.into()) as u32;
        if !self.has_gaps {
            return before;
        }
        let (first, last) = (self.prefix as usize / 64, layout.fragments() - 1);
        let words = bits.iter().enumerate().skip(first);
        let behind: u32 = words
            .map(|(at, word)| if at == first { word & (!0 << (self.prefix % 64)) } else { *word })
            .map(u64::count_ones)
            .sum();
        let has_last = last >= self.prefix && self.has(bits, last);
        let short = if has_last { layout.mtu - layout.len_of(last) } else { 0 };
        before + behind * layout.mtu - short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(
            fragments in 1_u32..200,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..600),
            cut in 0_u32..256,
        ) {
            let layout = Layout::new(256, (fragments * 256).saturating_sub(cut), 0).unwrap();
            let fragments = layout.fragments();
            let (mut arrivals, mut bits) = (Arrivals::default(), vec![u64::MAX; 1]);
            let mut model = std::collections::BTreeSet::new();
            for index in order {
                let k = index.index(fragments as usize) as u32;
                prop_assert_eq!(arrivals.has(&bits, k), model.contains(&k));
                if model.contains(&k) {
                    continue;
                }
                model.insert(k);
                let whole = arrivals.completes(&bits, k, fragments);
                prop_assert_eq!(whole, model.len() as u32 == fragments);
                arrivals.mark(&mut bits, k, fragments);
                let bytes: u32 = model.iter().map(|k| layout.len_of(*k)).sum();
                prop_assert_eq!(arrivals.bytes(&bits, &layout), bytes);
            }
        }
    }
}
