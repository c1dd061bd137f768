//! Fuzzes how a receiver handles a sender's messages, without a sender.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::digest::BlockHash;
use super::dir::{Dir, Rights};
use super::filter::Filter;
use super::list::List;
use super::message::{Hello, Message};
use super::partial;
use super::store::Store;
use super::tree::Segments;

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Option<Scratch> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bowline-fuzz-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("into/old")).ok()?;
        std::fs::write(path.join("into/a"), b"was there").ok()?;
        Some(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Consecutive messages in one input.
struct Messages<'a>(&'a [u8]);

impl Iterator for Messages<'_> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let (message, rest) = postcard::take_from_bytes(self.0).ok()?;
        self.0 = rest;
        Some(message)
    }
}

/// Replays a sender's messages up to the end of a transfer of a few bytes. Nothing may appear
/// outside the receiver's directory.
pub fn recv(input: &[u8]) {
    let _ = postcard::from_bytes::<Hello>(input);
    let Some((options, mut messages)) = input.split_first().map(|(o, m)| (*o, Messages(m))) else {
        return;
    };
    let Some(scratch) = Scratch::new() else { return };
    let bit = |n: u8| options >> n & 1 != 0;
    let rights = Rights { overwrite: bit(0), delete: bit(1), owner: false, xattrs: bit(2) };
    let Ok(dir) = Dir::open(&scratch.0.join("into"), rights) else { return };
    // Most inputs are rejected before the transfer enters a directory, which is fine.
    let _ = transfer(&dir, bit(3), &mut messages);
    let outside = std::fs::read_dir(&scratch.0).map_or(1, Iterator::count);
    assert_eq!(outside, 1, "something was made outside of the directory");
}

fn transfer(dir: &Dir, dry_run: bool, messages: &mut Messages<'_>) -> Option<()> {
    let mut list = List::default();
    let tree = loop {
        match messages.next()? {
            Message::Entries(entries) => {
                entries.into_iter().try_for_each(|entry| list.push(entry)).ok()?;
            }
            Message::EndOfEntries => break list.finish().ok()?,
            _ => return None,
        }
    };
    let mut store = Store::examine(dir, &tree, dry_run);
    let _ = store.claims();
    loop {
        match messages.next()? {
            Message::Checked(_) => {}
            Message::Denied(blocks) => blocks.into_iter().for_each(|block| {
                store.deny(block);
            }),
            Message::EndOfDenied => break,
            _ => return None,
        }
    }
    store.prepare().ok()?;
    if dry_run {
        let _ = store.remove_others(&Filter::default());
        return None;
    }
    let segments = Segments::new(&tree, |block| {
        store.there(block).is_some() || store.failures.contains(tree.place(block).entry)
    });
    let mut hashes: Vec<BlockHash> =
        (0..tree.blocks()).map(|block| store.there(block).unwrap_or_default()).collect();
    for message in messages {
        let Message::Hashes { segment, hashes: of_segment, .. } = message else { return None };
        let blocks = segments.get(segment);
        if blocks.len() != of_segment.len() {
            return None;
        }
        for (block, hash) in blocks.iter().zip(of_segment) {
            let place = tree.place(*block);
            let bytes = vec![0x5a; place.len.min(1000)];
            store.write(place.entry, place.offset, &bytes).ok()?;
            hashes[*block as usize] = hash;
        }
    }
    store.finish_links();
    if dir.rights.delete {
        let _ = store.remove_others(&Filter::default());
    }
    store.finish_dirs();
    let _ = tree.digest(&hashes, |index| store.failures.contains(index));
    for entry in tree.entries() {
        let _ = partial::records(&entry.path, entry.bytes(), entry.mtime);
    }
    Some(())
}

/// Matches a path against a pattern; a zero byte separates the two.
pub(crate) fn pattern(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let (Some(pattern), Some(path)) = (parts.next(), parts.next()) else { return };
    let pattern = String::from_utf8_lossy(pattern).into_owned();
    if let Ok(filter) = Filter::new(&[pattern], &[]) {
        let _ = filter.leaves_out(path, false);
        let _ = filter.leaves_out(path, true);
    }
}
