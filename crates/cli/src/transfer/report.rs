//! What a transfer did.

use std::time::Duration;

use bowline::ReliableStats;
use serde::Serialize;

use super::digest::BlockHash;
use super::tree::Tree;

/// What an end tells its user.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) files: usize,
    /// Bytes of all files.
    pub(super) bytes: u64,
    /// Bytes that had to be moved; the rest was there.
    pub(super) moved_bytes: u64,
    pub(super) scheme: String,
    /// From the first segment to the receiver's word that everything is in its place.
    pub(super) elapsed_s: f64,
    pub(super) goodput_gbps: f64,
    /// Segments that arrived other than they were sent, and were sent again.
    pub(super) segments_again: u64,
    /// Chunks that this end sent again.
    pub(super) chunks_resent: u64,
    /// Chunks that this end computed from parity.
    pub(super) chunks_recovered: u64,
    /// BLAKE3 of the files' hashes, in the order in which they were sent.
    pub(super) digest: String,
    /// Each file with its hash.
    pub(super) contents: Vec<FileReport>,
}

/// A file and its hash.
#[derive(Debug, Serialize)]
pub(super) struct FileReport {
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

impl Report {
    /// About a tree with these hashes of its blocks; each file's only if they are `listed`.
    pub(super) fn new(
        tree: &Tree,
        hashes: &[BlockHash],
        stats: &ReliableStats,
        listed: bool,
    ) -> Report {
        let files = tree.entries().iter().enumerate().filter(|(_, entry)| entry.is_file());
        let contents = files
            .filter(|_| listed)
            .map(|(index, entry)| FileReport {
                path: entry.name(),
                bytes: entry.bytes(),
                blake3: tree.file_hash(index, hashes).to_string(),
            })
            .collect();
        Report {
            files: tree.files(),
            bytes: tree.bytes(),
            chunks_resent: stats.chunks_resent,
            chunks_recovered: stats.chunks_recovered,
            digest: blake3::Hash::from_bytes(tree.digest(hashes)).to_string(),
            contents,
            ..Report::default()
        }
    }

    pub(super) fn set_time(&mut self, elapsed: Duration) {
        self.elapsed_s = elapsed.as_secs_f64();
        self.goodput_gbps = self.moved_bytes as f64 * 8e-9 / self.elapsed_s.max(1e-9);
    }

    pub(super) fn print(&self, verb: &str, json: bool) {
        let Report { files, bytes, moved_bytes, elapsed_s, goodput_gbps, .. } = self;
        let there = match bytes - moved_bytes {
            0 => String::new(),
            there => format!(", {} of them were there", indicatif::HumanBytes(there)),
        };
        let bytes = indicatif::HumanBytes(*bytes);
        let plural = if *files == 1 { "" } else { "s" };
        println!(
            "{verb} {files} file{plural}, {bytes}{there}, in {elapsed_s:.2} s: {goodput_gbps:.2} \
             Gbit/s over {}; BLAKE3 verified",
            self.scheme
        );
        if json {
            match serde_json::to_string(self) {
                Ok(text) => println!("{text}"),
                Err(e) => eprintln!("bowline: cannot write the report: {e}"),
            }
        }
    }
}
