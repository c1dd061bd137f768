//! Numbers the blocks of a transfer's files, and groups the blocks to move into segments.
//!
//! Both ends compute both from what they have agreed on, so that a number identifies a block or
//! segment.

use std::collections::HashSet;
use std::ops::Range;

use super::digest::{BLOCK_BYTES, BlockHash, file_hash};
use super::message::Entry;

/// Maximum number of blocks in a segment: their hashes fit into one message.
const MAX_BLOCKS: usize = 1024;

/// Files and directories, with consecutively numbered blocks.
#[derive(Debug, Default)]
pub(super) struct Tree {
    entries: Vec<Entry>,
    /// Number of each entry's first block.
    first_blocks: Vec<u32>,
    blocks: u32,
    bytes: u64,
}

/// The position of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of its file.
    pub(super) entry: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Tree {
    /// Adds an entry. Returns `None` if there are more blocks than can be numbered.
    pub(super) fn push(&mut self, entry: Entry) -> Option<()> {
        let bytes = entry.bytes();
        let count = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).ok()?;
        let (blocks, total) = (self.blocks.checked_add(count)?, self.bytes.checked_add(bytes)?);
        self.first_blocks.push(self.blocks);
        self.entries.push(entry);
        (self.blocks, self.bytes) = (blocks, total);
        Some(())
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The maximum length of a segment.
    pub(super) fn max_segment_bytes(&self) -> u32 {
        let longest = self.entries.iter().map(Entry::bytes).max().unwrap_or(0).min(BLOCK_BYTES);
        let most = (longest * MAX_BLOCKS as u64).min(self.bytes).min(BLOCK_BYTES);
        most.max(1) as u32
    }

    /// The blocks of an entry.
    pub(super) fn blocks_of(&self, entry: usize) -> Range<u32> {
        let end = self.first_blocks.get(entry + 1).copied().unwrap_or(self.blocks);
        self.first_blocks[entry]..end
    }

    /// The position of a block.
    pub(super) fn place(&self, block: u32) -> Place {
        // An entry without blocks has the same first block as the next entry. The last such entry
        // has the block.
        let entry = self.first_blocks.partition_point(|first| *first <= block) - 1;
        let offset = u64::from(block - self.first_blocks[entry]) * BLOCK_BYTES;
        let len = (self.entries[entry].bytes() - offset).min(BLOCK_BYTES) as usize;
        Place { entry, offset, len }
    }

    /// The hash of the hashes of all files that arrived, in their order.
    pub(super) fn digest(
        &self,
        blocks: &[BlockHash],
        is_left_out: impl Fn(usize) -> bool,
    ) -> BlockHash {
        let mut hasher = blake3::Hasher::new();
        let files = (0..self.entries.len()).filter(|i| self.entries[*i].is_file());
        for index in files.filter(|index| !is_left_out(*index)) {
            hasher.update(self.file_hash(index, blocks).as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// The hash of a file, given the hashes of all blocks of the tree.
    pub(super) fn file_hash(&self, entry: usize, blocks: &[BlockHash]) -> blake3::Hash {
        let Range { start, end } = self.blocks_of(entry);
        file_hash(&blocks[start as usize..end as usize])
    }
}

/// Blocks in transfer order, grouped into messages. Small files share a message, so that they do
/// not cost a round trip each.
#[derive(Debug, Default)]
pub(super) struct Segments {
    blocks: Vec<u32>,
    /// Where each segment ends.
    ends: Vec<usize>,
    bytes: u64,
}

impl Segments {
    /// Groups the blocks for which `is_there` returns false.
    pub(super) fn new(tree: &Tree, is_there: impl Fn(u32) -> bool) -> Segments {
        let mut segments = Segments::default();
        let (mut bytes, mut first) = (0, 0);
        for block in (0..tree.blocks()).filter(|block| !is_there(*block)) {
            let len = tree.place(block).len as u64;
            let at = segments.blocks.len();
            if at > first && (bytes + len > BLOCK_BYTES || at - first == MAX_BLOCKS) {
                segments.ends.push(at);
                (bytes, first) = (0, at);
            }
            segments.blocks.push(block);
            bytes += len;
            segments.bytes += len;
        }
        if segments.blocks.len() > first {
            segments.ends.push(segments.blocks.len());
        }
        segments
    }

    pub(super) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entries of which some blocks are moved.
    pub(super) fn files(&self, tree: &Tree) -> HashSet<usize> {
        self.blocks.iter().map(|block| tree.place(*block).entry).collect()
    }

    /// The blocks of a segment; none if there is no such segment.
    pub(super) fn get(&self, segment: u32) -> &[u32] {
        let index = segment as usize;
        let Some(end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.blocks[start..*end]
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Kind, Timestamp};
    use super::*;

    fn file(bytes: u64) -> Entry {
        let (kind, mtime) = (Kind::File { bytes, sparse: false }, Timestamp::default());
        Entry { path: vec![b'f'], kind, mode: 0, mtime, owner: None, xattrs: vec![] }
    }

    fn tree(sizes: &[u64]) -> Tree {
        let mut tree = Tree::default();
        for bytes in sizes {
            tree.push(file(*bytes)).unwrap();
        }
        tree
    }

    #[test]
    fn every_byte_lies_in_one_block() {
        let sizes = [0, 1, 0, 0, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, 0, 7];
        let tree = tree(&sizes);
        let mut covered = [0; 8];
        for block in 0..tree.blocks() {
            let Place { entry, offset, len } = tree.place(block);
            assert_eq!(covered[entry], offset);
            assert!(tree.blocks_of(entry).contains(&block));
            covered[entry] += len as u64;
        }
        assert_eq!(covered, sizes);
    }

    #[test]
    fn segments_hold_all_that_is_missing_and_no_more_than_fits() {
        let mut sizes = vec![100; 5_000];
        sizes.extend([BLOCK_BYTES * 3 + 1, 5, BLOCK_BYTES - 5, 0, 6]);
        let tree = tree(&sizes);
        let segments = Segments::new(&tree, |block| block % 7 == 3);
        let mut moved = Vec::new();
        for segment in 0..segments.len() {
            let blocks = segments.get(segment);
            let bytes: usize = blocks.iter().map(|b| tree.place(*b).len).sum();
            assert!((1..=MAX_BLOCKS).contains(&blocks.len()) && bytes as u64 <= BLOCK_BYTES);
            moved.extend_from_slice(blocks);
        }
        assert_eq!(u64::from(tree.max_segment_bytes()), BLOCK_BYTES);
        let missing: Vec<_> = (0..tree.blocks()).filter(|block| block % 7 != 3).collect();
        assert_eq!(moved, missing);
        assert!(segments.get(segments.len()).is_empty());
        assert_eq!(Segments::new(&tree, |_| true).len(), 0);
    }

    #[test]
    fn memory_for_a_segment_is_enough_and_no_more() {
        for sizes in [&[][..], &[0], &[1], &[4096; 3], &[100; 3000], &[5_000_000; 9]] {
            let tree = tree(sizes);
            let segments = Segments::new(&tree, |_| false);
            let longest = (0..segments.len())
                .map(|s| segments.get(s).iter().map(|b| tree.place(*b).len).sum::<usize>())
                .max();
            let most = tree.max_segment_bytes() as usize;
            assert!(longest.unwrap_or(0) <= most && most as u64 <= tree.bytes().max(1));
        }
    }

    #[test]
    fn too_much_to_number_is_refused() {
        let mut tree = tree(&[u64::from(u32::MAX) * BLOCK_BYTES]);
        assert!(tree.push(file(1)).is_none());
    }
}
