//! Which fragments of a message have arrived.

use core::ops::Range;

use super::imm::MAX_FRAGMENTS;

/// What has arrived of a message, whose length only its last fragment tells.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// One bit per fragment, growing as fragments arrive.
    bits: Vec<u64>,
    count: u32,
    bytes: u32,
    /// Number of fragments and bytes of the message, once the last one has arrived.
    end: Option<(u32, u32)>,
}

/// Why a fragment was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Duplicate,
    /// It contradicts itself or others.
    Malformed,
}

impl Arrived {
    fn has(&self, k: u32) -> bool {
        self.bits.get(k as usize / 64).is_some_and(|word| word >> (k % 64) & 1 != 0)
    }

    /// One past the highest fragment that has arrived.
    fn top(&self) -> u32 {
        let Some(at) = self.bits.iter().rposition(|word| *word != 0) else { return 0 };
        at as u32 * 64 + 64 - self.bits[at].leading_zeros()
    }

    /// Adds fragment `k` of `bytes` to a receive of `room` bytes.
    pub(super) fn take(
        &mut self,
        k: u32,
        bytes: u32,
        last: bool,
        mtu: u32,
        room: u32,
    ) -> Result<(), NotTaken> {
        let start = u64::from(k) * u64::from(mtu);
        let end = start + u64::from(bytes);
        // A last fragment is empty only if the message is.
        let as_long = if last { bytes <= mtu && (bytes > 0 || k == 0) } else { bytes == mtu };
        let inside = match self.end {
            Some((fragments, _)) => k < fragments && last == (k + 1 == fragments),
            None => !last || k + 1 >= self.top(),
        };
        if !as_long || !inside || end > room.into() || k >= MAX_FRAGMENTS {
            return Err(NotTaken::Malformed);
        }
        if self.has(k) {
            return Err(NotTaken::Duplicate);
        }
        let word = k as usize / 64;
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << (k % 64);
        self.count += 1;
        self.bytes += bytes;
        if last {
            self.end = Some((k + 1, end as u32));
        }
        Ok(())
    }

    /// Bytes that have arrived.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether the last fragment has arrived.
    pub(super) fn has_last(&self) -> bool {
        self.end.is_some()
    }

    /// Whether all fragments have arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.end.is_some_and(|(fragments, _)| fragments == self.count)
    }

    /// Bytes of the message, if its last fragment has arrived.
    pub(super) fn len(&self) -> Option<u32> {
        self.end.map(|(_, len)| len)
    }

    /// What is missing, up to the end of the message if it is known, else of the receive.
    pub(super) fn missing(&self, mtu: u32, room: u32) -> Vec<Range<u32>> {
        let len = self.len().unwrap_or(room);
        let mut missing: Vec<Range<u32>> = Vec::new();
        for k in (0..len.div_ceil(mtu)).filter(|k| !self.has(*k)) {
            let range = k * mtu..len.min((k + 1).saturating_mul(mtu));
            match missing.last_mut() {
                Some(before) if before.end == range.start => before.end = range.end,
                _ => missing.push(range),
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let mut arrived = Arrived::default();
        let mut take = |k, bytes, last| arrived.take(k, bytes, last, 256, 1000);
        let malformed = Err(NotTaken::Malformed);
        assert_eq!(take(0, 255, false), malformed, "a short one in the middle");
        assert_eq!(take(3, 256, false), malformed, "beyond the receive");
        assert_eq!(take(1, 0, true), malformed, "an empty last one behind others");
        assert_eq!(take(1, 256, false), Ok(()));
        assert_eq!(take(1, 256, false), Err(NotTaken::Duplicate));
        assert_eq!(take(0, 256, true), malformed, "a last one before another");
        assert_eq!(take(2, 100, true), Ok(()));
        assert_eq!(take(3, 100, true), malformed, "a second last one");
        assert_eq!(take(2, 256, false), malformed, "the last one as another");
        assert_eq!(arrived.missing(256, 1000), vec![0..256]);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(
            len in 0_u32..20_000,
            room in 0_u32..4000,
            order in prop::collection::vec(0_u32..90, 0..300),
        ) {
            let (mtu, room) = (256, len + room);
            let fragments = len.div_ceil(mtu).max(1);
            let mut arrived = Arrived::default();
            let mut model = BTreeSet::new();
            for k in order.into_iter().map(|k| k % fragments) {
                let bytes = (len - k * mtu).min(mtu);
                let new = model.insert(k);
                let taken = arrived.take(k, bytes, k + 1 == fragments, mtu, room);
                prop_assert_eq!(taken.is_ok(), new);
            }
            let end = if model.contains(&(fragments - 1)) { len } else { room };
            let there = |at: u32| model.contains(&(at / mtu)) && at < len;
            let missing = arrived.missing(mtu, room);
            for at in 0..end {
                prop_assert_eq!(missing.iter().any(|range| range.contains(&at)), !there(at));
            }
            prop_assert!(missing.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(arrived.is_whole(), model.len() as u32 == fragments);
            prop_assert_eq!(arrived.bytes(), (0..len).filter(|at| there(*at)).count() as u32);
        }
    }
}
