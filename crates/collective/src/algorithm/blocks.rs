//! Cuts a buffer into one block for each rank.

use std::ops::Range;

use crate::Rank;

/// The byte range of the `index`-th of `count` blocks of a buffer. Blocks consist of whole elements
/// and differ by at most one element.
pub(super) fn block(bytes: usize, element: usize, count: usize, index: usize) -> Range<usize> {
    let elements = bytes / element;
    let (each, longer) = (elements / count, elements % count);
    let start = |index: usize| (index * each + index.min(longer)) * element;
    start(index)..start(index + 1)
}

/// The block of a rank, if all blocks are equally long.
pub(super) fn nth(block: usize, rank: Rank) -> Range<usize> {
    let rank = rank as usize;
    rank * block..(rank + 1) * block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_buffer_with_whole_elements() {
        for (elements, count) in [(0, 3), (2, 5), (16, 4), (17, 4), (1000, 7)] {
            let blocks: Vec<_> = (0..count).map(|i| block(elements * 4, 4, count, i)).collect();
            let end = blocks.iter().fold(0, |at, block| {
                assert_eq!(at, block.start);
                assert_eq!(block.len() % 4, 0);
                block.end
            });
            assert_eq!(end, elements * 4);
            let lengths = blocks.iter().map(|block| block.len());
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 4);
        }
    }
}
