//! The result of a transfer.

use std::time::Duration;

use bowline::ReliableStats;
use indicatif::HumanBytes;
use serde::Serialize;

use super::digest::BlockHash;
use super::failures::Failures;
use super::meter::Show;
use super::tree::{Segments, Tree};
use crate::output::{JSON_VERSION, plain};

/// The report that an end shows to its user.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) event: &'static str,
    pub(super) files: usize,
    /// Bytes of all files.
    pub(super) bytes: u64,
    /// Bytes that had to be moved; the rest already existed.
    pub(super) moved_bytes: u64,
    pub(super) scheme: String,
    /// From the first segment until the receiver reports that everything is complete.
    pub(super) elapsed_s: f64,
    pub(super) goodput_gbps: f64,
    /// Segments that arrived damaged and were sent again.
    pub(super) segments_again: u64,
    /// Chunks that this end retransmitted.
    pub(super) chunks_resent: u64,
    /// Chunks that this end computed from parity.
    pub(super) chunks_recovered: u64,
    /// BLAKE3 of the files' hashes, in the order in which they were sent.
    pub(super) digest: String,
    /// Nothing was changed: this is what would happen.
    pub(super) dry_run: bool,
    /// Fingerprint of the peer's key; null if the peer was not authenticated.
    pub(super) peer: Option<String>,
    /// Entries that were left out, and why.
    pub(super) left_out: Vec<LeftOutReport>,
    /// Paths that the receiver deleted.
    pub(super) removed: Vec<String>,
    /// With several receivers: the result of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) receivers: Vec<ReceiverReport>,
    /// Each file with its hash.
    pub(super) contents: Vec<FileReport>,
}

/// One of several receivers.
#[derive(Debug, Serialize)]
pub(super) struct ReceiverReport {
    pub(super) host: String,
    /// Entries that it left out, and why.
    pub(super) left_out: Vec<LeftOutReport>,
    /// Paths that it deleted.
    pub(super) removed: Vec<String>,
    /// Why it failed; null if it has everything that it did not leave out.
    pub(super) error: Option<String>,
}

/// An entry that was left out.
#[derive(Debug, Serialize)]
pub(super) struct LeftOutReport {
    pub(super) path: String,
    pub(super) why: String,
}

/// A file and its hash.
#[derive(Debug, Serialize)]
pub(super) struct FileReport {
    pub(super) path: String,
    pub(super) bytes: u64,
    /// Nothing of it had to be moved.
    pub(super) was_there: bool,
    pub(super) blake3: String,
}

/// Maximum number of lines about single entries.
const MAX_LINES: usize = 20;

impl Report {
    /// A report about a tree whose blocks have these hashes.
    pub(super) fn new(
        tree: &Tree,
        hashes: &[BlockHash],
        stats: &ReliableStats,
        segments: &Segments,
        failures: &Failures,
    ) -> Report {
        let moved = segments.files(tree);
        let entries = tree.entries().iter().enumerate();
        let files = entries.filter(|(i, entry)| entry.is_file() && !failures.contains(*i));
        let contents: Vec<FileReport> = files
            .map(|(index, entry)| FileReport {
                path: entry.name(),
                bytes: entry.bytes(),
                was_there: !moved.contains(&index),
                blake3: tree.file_hash(index, hashes).to_string(),
            })
            .collect();
        let left_out = failures
            .list()
            .into_iter()
            .map(|(index, why)| LeftOutReport { path: tree.entries()[index].name(), why });
        let digest = tree.digest(hashes, |index| failures.contains(index));
        Report {
            version: JSON_VERSION,
            event: "done",
            files: contents.len(),
            bytes: contents.iter().map(|file| file.bytes).sum(),
            moved_bytes: segments.bytes(),
            chunks_resent: stats.chunks_resent,
            chunks_recovered: stats.chunks_recovered,
            digest: blake3::Hash::from_bytes(digest).to_string(),
            left_out: left_out.collect(),
            contents,
            ..Report::default()
        }
    }

    /// Whether something was left out.
    pub(super) fn is_partial(&self) -> bool {
        !self.left_out.is_empty() || self.receivers.iter().any(|r| !r.left_out.is_empty())
    }

    /// Whether one of several receivers failed.
    pub(super) fn has_failures(&self) -> bool {
        self.receivers.iter().any(|receiver| receiver.error.is_some())
    }

    pub(super) fn set_time(&mut self, elapsed: Duration) {
        self.elapsed_s = elapsed.as_secs_f64();
        self.goodput_gbps = self.moved_bytes as f64 * 8e-9 / self.elapsed_s.max(1e-9);
    }

    pub(super) fn print(&self, verb: &str, show: Show) {
        let left_out =
            self.left_out.iter().map(|LeftOutReport { path, why }| format!("{path}: {why}"));
        print_lines("left out", left_out);
        for ReceiverReport { host, left_out, error, .. } in &self.receivers {
            let lines = left_out.iter().map(|l| format!("{}: {}", l.path, l.why));
            print_lines(&format!("{host} left out"), lines);
            print_lines("failed:", error.iter().map(|why| format!("{host}: {why}")));
        }
        if show.json {
            match serde_json::to_string(self) {
                Ok(text) => println!("{text}"),
                Err(e) => eprintln!("bowline: cannot write the report: {e}"),
            }
            return;
        }
        if show.quiet {
            return;
        }
        if self.dry_run {
            let to_move = self.contents.iter().filter(|file| !file.was_there);
            to_move.for_each(|file| println!("would send {}", plain(&file.path)));
            self.removed.iter().for_each(|path| println!("would remove {}", plain(path)));
        }
        println!("{}", self.summary(verb));
    }

    fn summary(&self, verb: &str) -> String {
        let Report { files, bytes, moved_bytes, elapsed_s, goodput_gbps, .. } = self;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let total = HumanBytes(*bytes);
        let mut text = match self.dry_run {
            true => format!(
                "would have {verb} {} of {files} file{}, {total}",
                HumanBytes(*moved_bytes),
                plural(*files)
            ),
            false => format!("{verb} {files} file{}, {total}", plural(*files)),
        };
        if let Some(there @ 1..) = bytes.checked_sub(*moved_bytes)
            && !self.dry_run
        {
            text += &format!(", {} of them already there", HumanBytes(there));
        }
        if !self.dry_run {
            let scheme = &self.scheme;
            text += &format!(
                ", in {elapsed_s:.2} s: {goodput_gbps:.2} Gbit/s over {scheme}; BLAKE3 verified"
            );
        }
        if !self.receivers.is_empty() {
            let all = self.receivers.len();
            let reached = self.receivers.iter().filter(|r| r.error.is_none()).count();
            text += &match reached == all {
                true => format!("; to {all} receivers"),
                false => format!("; to {reached} of {all} receivers, THE OTHERS FAILED, see above"),
            };
        }
        if !self.removed.is_empty() {
            text += &format!(", {} removed", self.removed.len());
        }
        match &self.peer {
            Some(peer) => text += &format!("; peer {peer}"),
            None => text += "; unauthenticated",
        }
        if self.is_partial() {
            let theirs: usize = self.receivers.iter().map(|r| r.left_out.len()).sum();
            text += &format!("; {} LEFT OUT, see above", self.left_out.len() + theirs);
        }
        text
    }
}

/// Prints the first lines about single entries, on stderr.
fn print_lines(what: &str, lines: impl ExactSizeIterator<Item = String>) {
    let count = lines.len();
    for line in lines.take(MAX_LINES) {
        eprintln!("bowline: {what} {}", plain(&line));
    }
    if count > MAX_LINES {
        eprintln!("bowline: {what} {} more", count - MAX_LINES);
    }
}
