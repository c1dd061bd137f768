//! BLAKE3 hashes of blocks, and of files from their blocks' hashes.
//!
//! BLAKE3 is a tree, and a block with a power of two of bytes is a subtree of it. Blocks can
//! therefore be hashed separately, in any order and by any thread. The file's hash follows from
//! theirs.

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

/// Length of a block, except for a file's last one.
pub(super) const BLOCK_BYTES: u64 = 16 << 20;

/// Hash of a block. If the file has only one block, this is the file's hash, otherwise that of a
/// subtree.
pub(super) type BlockHash = [u8; 32];

/// Hashes one block.
pub(super) struct BlockHasher {
    hasher: Hasher,
    is_whole_file: bool,
}

impl BlockHasher {
    /// For the block at `offset` of a file of `file_bytes`.
    pub(super) fn new(offset: u64, file_bytes: u64) -> BlockHasher {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(offset);
        BlockHasher { hasher, is_whole_file: file_bytes <= BLOCK_BYTES }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(super) fn finish(self) -> BlockHash {
        if self.is_whole_file {
            *self.hasher.finalize().as_bytes()
        } else {
            self.hasher.finalize_non_root()
        }
    }
}

/// The hash of a file, from the hashes of its blocks.
pub(super) fn file_hash(blocks: &[BlockHash]) -> blake3::Hash {
    match blocks {
        [] => blake3::hash(&[]),
        [whole] => blake3::Hash::from_bytes(*whole),
        _ => {
            let (left, right) = split(blocks);
            merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

fn subtree(blocks: &[BlockHash]) -> BlockHash {
    if let [block] = blocks {
        return *block;
    }
    let (left, right) = split(blocks);
    merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

/// Splits as BLAKE3 does: the left subtree has the largest power of two that leaves something for
/// the right one.
fn split(blocks: &[BlockHash]) -> (&[BlockHash], &[BlockHash]) {
    blocks.split_at(blocks.len().next_power_of_two() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_from_blocks_hashes_as_the_whole() {
        let whole: Vec<u8> =
            (0..5 * BLOCK_BYTES as usize / 2).map(|i| ((i * 31) >> 7) as u8).collect();
        for bytes in [0, 1, 1025, 1 << 24, (1 << 24) + 1, 1 << 25, whole.len()] {
            let file = &whole[..bytes];
            let hashes: Vec<_> = file
                .chunks(BLOCK_BYTES as usize)
                .enumerate()
                .map(|(i, block)| {
                    let mut hasher = BlockHasher::new(i as u64 * BLOCK_BYTES, bytes as u64);
                    block.chunks(100_000).for_each(|piece| hasher.update(piece));
                    hasher.finish()
                })
                .collect();
            assert_eq!(file_hash(&hashes), blake3::hash(file), "{bytes} bytes");
        }
    }

    #[test]
    fn trees_of_any_number_of_blocks_are_left_full() {
        let sizes = |n: usize| {
            let blocks = vec![[0; 32]; n];
            let (left, right) = split(&blocks);
            (left.len(), right.len())
        };
        assert_eq!([2, 3, 4, 5, 8, 9].map(sizes), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1)]);
    }
}
