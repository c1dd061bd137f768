//! Reads blocks of files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::digest::{BLOCK_BYTES, BlockHash, BlockHasher};

/// Bytes that are read, hashed and passed on at a time, so that they stay in the cache between
/// these steps.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// Reads a block piece by piece, passes each piece to `take` with its offset in the block, and
/// returns the block's hash.
pub(super) fn read_block(
    file: &File,
    offset: u64,
    file_bytes: u64,
    piece: &mut [u8],
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<BlockHash> {
    let len = (file_bytes - offset).min(BLOCK_BYTES);
    let mut hasher = BlockHasher::new(offset, file_bytes);
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(piece.len() as u64) as usize;
        let piece = &mut piece[..bytes];
        file.read_exact_at(piece, offset + done)?;
        hasher.update(piece);
        take(done, piece)?;
        done += bytes as u64;
    }
    Ok(hasher.finish())
}

/// The hash of a block.
pub(super) fn hash_block(
    file: &File,
    offset: u64,
    file_bytes: u64,
    piece: &mut [u8],
) -> io::Result<BlockHash> {
    read_block(file, offset, file_bytes, piece, |_, _| Ok(()))
}
