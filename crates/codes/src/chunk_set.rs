//! Sets of chunks of a block.

use std::fmt;

use crate::MAX_CHUNKS;

/// A set of chunk numbers of one block: data chunks are `0..k`, parity chunks `k..k + m`.
///
/// Small, `Copy` and hashable, so that it can be built from a receive bitmap each time and can
/// serve as the key under which a [`Plan`](crate::Plan) is cached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ChunkSet {
    words: [u64; MAX_CHUNKS / 64],
}

impl ChunkSet {
    /// The set without members.
    pub const EMPTY: Self = Self { words: [0; MAX_CHUNKS / 64] };

    /// The chunks `0..count`; numbers from [`MAX_CHUNKS`] on do not exist.
    pub fn first(count: usize) -> Self {
        let mut set = Self::EMPTY;
        for (i, word) in set.words.iter_mut().enumerate() {
            *word = low_bits(count.saturating_sub(64 * i));
        }
        set
    }

    /// Adds chunk `index`; one from [`MAX_CHUNKS`] on is ignored.
    pub fn insert(&mut self, index: usize) {
        if let Some(word) = self.words.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    /// Removes chunk `index`.
    pub fn remove(&mut self, index: usize) {
        if let Some(word) = self.words.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    /// Adds chunk `at + i` for each bit `i` of `bits`: a word of a receive bitmap at once.
    pub fn insert_bits(&mut self, at: usize, bits: u64) {
        let shift = at % 64;
        if let Some(word) = self.words.get_mut(at / 64) {
            *word |= bits << shift;
        }
        if shift != 0
            && let Some(word) = self.words.get_mut(at / 64 + 1)
        {
            *word |= bits >> (64 - shift);
        }
    }

    /// Whether chunk `index` is in the set.
    pub fn contains(&self, index: usize) -> bool {
        self.words.get(index / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    /// The number of chunks in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no chunk is in the set.
    pub fn is_empty(&self) -> bool {
        self.words == [0; MAX_CHUNKS / 64]
    }

    /// The chunks that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// The chunks that are in this set and not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// The chunks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.words;
        words.into_iter().enumerate().flat_map(|(i, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.checked_sub(1)?;
                Some(64 * i + bit)
            })
        })
    }

    fn zip(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self { words: std::array::from_fn(|i| combine(self.words[i], other.words[i])) }
    }
}

impl FromIterator<usize> for ChunkSet {
    fn from_iter<I: IntoIterator<Item = usize>>(chunks: I) -> Self {
        let mut set = Self::EMPTY;
        chunks.into_iter().for_each(|index| set.insert(index));
        set
    }
}

impl fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The lowest `count` bits set, all of them from 64 on.
fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_iterates_and_counts() {
        for count in [0, 1, 63, 64, 65, 255, 256] {
            let set = ChunkSet::first(count);
            assert_eq!(set.len(), count);
            assert!(set.iter().eq(0..count));
            assert_eq!(set.is_empty(), count == 0);
        }
    }

    #[test]
    fn bits_land_at_their_place_and_nothing_beyond_the_end() {
        for at in [0, 1, 32, 63, 64, 100, 191, 192, 200, 255, 256, 1000] {
            let mut set = ChunkSet::EMPTY;
            set.insert_bits(at, 0x8000_0000_0000_0005);
            let want = [at, at + 2, at + 63].into_iter().filter(|i| *i < MAX_CHUNKS);
            assert!(set.iter().eq(want), "at {at}: {set:?}");
        }
    }

    #[test]
    fn set_operations() {
        let (a, b) = (ChunkSet::from_iter([1, 70, 200]), ChunkSet::from_iter([70, 201]));
        assert!(a.intersection(&b).iter().eq([70]));
        assert!(a.difference(&b).iter().eq([1, 200]));
        let mut c = a;
        c.remove(1);
        assert!(!c.contains(1) && c.contains(200) && !c.contains(usize::MAX));
    }
}
