//! Records of incomplete files: which blocks of `NAME.bowline-part` are correct.
//!
//! `NAME.bowline-state` starts with a header that identifies the sender's file. A record is
//! appended for each block that was checked and written. A record that a crash truncated is
//! ignored. The next transfer does not trust the records: it hashes the blocks first.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::digest::{BLOCK_BYTES, BlockHash};
use super::message::Timestamp;

const PART: &[u8] = b".bowline-part";
const STATE: &[u8] = b".bowline-state";
const MAGIC: &[u8; 8] = b"BWLNPRT1";
const HEADER_LEN: usize = 36;
const RECORD_LEN: usize = 36;
/// The longest name that file systems allow.
const MAX_NAME: usize = 255;

/// Whether a name is reserved for partial files.
pub(super) fn is_reserved(name: &[u8]) -> bool {
    name.ends_with(PART) || name.ends_with(STATE)
}

/// The name of a file until it is complete.
pub(super) fn part_name(name: &OsStr) -> OsString {
    with_suffix(name, PART)
}

/// The name of its records.
pub(super) fn state_name(name: &OsStr) -> OsString {
    with_suffix(name, STATE)
}

/// Appends a suffix. A name that would become too long ends in its hash instead.
fn with_suffix(name: &OsStr, suffix: &[u8]) -> OsString {
    let bytes = name.as_bytes();
    if bytes.len() + suffix.len() <= MAX_NAME {
        return OsString::from_vec([bytes, suffix].concat());
    }
    let hash = blake3::hash(bytes).to_hex();
    OsString::from_vec([&bytes[..128], b"~", hash.as_bytes()[..32].as_ref(), suffix].concat())
}

/// A block that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Its number in the file.
    pub(super) block: u32,
    pub(super) hash: BlockHash,
}

impl Record {
    pub(super) fn to_bytes(self) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        out[..4].copy_from_slice(&self.block.to_le_bytes());
        out[4..].copy_from_slice(&self.hash);
        out
    }
}

/// The beginning of a file of records.
pub(super) fn header(file_bytes: u64, mtime: Timestamp) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..8].copy_from_slice(MAGIC);
    out[8..16].copy_from_slice(&file_bytes.to_le_bytes());
    out[16..24].copy_from_slice(&mtime.secs.to_le_bytes());
    out[24..28].copy_from_slice(&mtime.nanos.to_le_bytes());
    out[28..].copy_from_slice(&BLOCK_BYTES.to_le_bytes());
    out
}

/// The records, if they belong to this file; only the last one for each block.
pub(super) fn records(bytes: &[u8], file_bytes: u64, mtime: Timestamp) -> Vec<Record> {
    let Some(rest) = bytes.strip_prefix(&header(file_bytes, mtime)) else { return Vec::new() };
    let blocks = file_bytes.div_ceil(BLOCK_BYTES);
    let (whole, _torn) = rest.as_chunks::<RECORD_LEN>();
    let mut records: Vec<Record> = whole
        .iter()
        .filter_map(|bytes| {
            let (block, hash) = bytes.split_first_chunk::<4>()?;
            let block = u32::from_le_bytes(*block);
            Some(Record { block, hash: hash.try_into().ok()? })
        })
        .filter(|record| u64::from(record.block) < blocks)
        .collect();
    records.reverse();
    records.sort_by_key(|record| record.block);
    records.dedup_by_key(|record| record.block);
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTIME: Timestamp = Timestamp { secs: 5, nanos: 7 };

    #[test]
    fn records_survive_a_torn_end_and_nothing_else_does() {
        let file_bytes = 3 * BLOCK_BYTES;
        let record = |block, byte| Record { block, hash: [byte; 32] };
        let written = [record(2, 1), record(0, 2), record(2, 3), record(3, 4)];
        let mut bytes = header(file_bytes, MTIME).to_vec();
        written.iter().for_each(|record| bytes.extend(record.to_bytes()));
        let expected = [record(0, 2), record(2, 3)];
        assert_eq!(records(&bytes, file_bytes, MTIME), expected);
        bytes.extend([1; RECORD_LEN - 1]);
        assert_eq!(records(&bytes, file_bytes, MTIME), expected);
        assert!(records(&bytes, file_bytes + 1, MTIME).is_empty());
        assert!(records(&bytes, file_bytes, Timestamp { secs: 6, ..MTIME }).is_empty());
        assert!(records(&bytes[..20], file_bytes, MTIME).is_empty());
    }

    #[test]
    fn long_names_stay_short_enough_and_apart() {
        let name = |last: &str| OsString::from("x".repeat(MAX_NAME - 1) + last);
        let (a, b) = (part_name(&name("a")), part_name(&name("b")));
        assert!(a != b && a.len() <= MAX_NAME && is_reserved(a.as_bytes()));
        assert_eq!(part_name(OsStr::new("a")), "a.bowline-part");
    }
}
