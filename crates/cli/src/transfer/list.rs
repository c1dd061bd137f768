//! The sender's list of files and directories, checked as it arrives.

use std::mem::size_of;

use super::Failure;
use super::dir::check_path;
use super::message::{Entry, Kind, MAX_PATH};
use super::tree::Tree;
use super::xattr;

/// Maximum memory for one list, enough for about two million files.
const MAX_BYTES: usize = 256 << 20;
/// Memory of an entry without its path, here and in the tables made from it.
const ENTRY_BYTES: usize = size_of::<Entry>() + 64;

/// The part of a list that has arrived.
#[derive(Default)]
pub(super) struct List {
    tree: Tree,
    bytes: usize,
}

impl List {
    /// Adds an entry. Fails if no honest sender would send it, or if there are too many.
    pub(super) fn push(&mut self, entry: Entry) -> Result<(), Failure> {
        if let Err(why) = check_path(&entry.path) {
            return Err(format!("the path {:?} is refused: {why}", entry.name()).into());
        }
        if entry.mtime.nanos >= 1_000_000_000 {
            return Err(
                format!("{:?} is refused: its modification time is invalid", entry.name()).into()
            );
        }
        if let Err(why) = self.check_kind(&entry) {
            return Err(format!("{:?} is refused: {why}", entry.name()).into());
        }
        let target = if let Kind::Symlink(target) = &entry.kind { target.len() } else { 0 };
        let xattrs: usize = entry.xattrs.iter().map(|x| 64 + x.name.len() + x.value.len()).sum();
        self.bytes += ENTRY_BYTES + entry.path.len() + target + xattrs;
        if self.bytes > MAX_BYTES {
            let count = self.tree.entries().len();
            return Err(format!(
                "the list of files is too long: after {count} entries it takes more than {} MiB; \
                 send the directories in it one by one",
                MAX_BYTES >> 20
            )
            .into());
        }
        let why = "too many files or bytes for one transfer: split it into several";
        self.tree.push(entry).ok_or_else(|| why.into())
    }

    /// Checks that a link's target is possible, and that attributes are user attributes.
    fn check_kind(&self, entry: &Entry) -> Result<(), &'static str> {
        match &entry.kind {
            Kind::Symlink(target) if target.is_empty() || target.len() > MAX_PATH => {
                Err("its link is empty or too long")
            }
            Kind::Symlink(target) if target.contains(&0) => Err("its link has a zero byte"),
            Kind::HardLink(first) => match self.tree.entries().get(*first as usize) {
                Some(first) if first.is_file() => Ok(()),
                _ => Err("it is a hard link to an entry that was not sent before it"),
            },
            _ if !xattr::are_right(&entry.xattrs) => Err("its extended attributes are invalid"),
            _ => Ok(()),
        }
    }

    /// Completes the list: no path may occur twice.
    pub(super) fn finish(self) -> Result<Tree, Failure> {
        let mut paths: Vec<&[u8]> =
            self.tree.entries().iter().map(|entry| &entry.path[..]).collect();
        paths.sort_unstable();
        match paths.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                let name = String::from_utf8_lossy(pair[0]);
                Err(format!("the path {name:?} is refused: it occurs twice").into())
            }
            None => Ok(self.tree),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Timestamp, Xattr};
    use super::*;

    fn directory(path: Vec<u8>) -> Entry {
        let (kind, mtime) = (Kind::Directory, Timestamp::default());
        Entry { path, kind, mode: 0o755, mtime, owner: None, xattrs: vec![] }
    }

    #[test]
    fn a_list_without_end_is_refused_before_it_fills_the_memory() {
        let mut list = List::default();
        let error = (0_u32..)
            .find_map(|number| {
                let path = format!("{}{number}", "x".repeat(4000));
                list.push(directory(path.into_bytes())).err()
            })
            .unwrap();
        assert!(error.to_string().contains("too long"), "{error}");
        let held: usize = list.tree.entries().iter().map(|entry| entry.path.len()).sum();
        assert!(held <= MAX_BYTES, "{held} bytes are held");
        // Short paths count as well.
        let mut list = List::default();
        let refused = (0_u32..).find(|n| list.push(directory(n.to_string().into_bytes())).is_err());
        assert!(refused.is_some_and(|count| count < 3_000_000), "{refused:?}");
    }

    #[test]
    fn links_and_attributes_that_cannot_be_are_refused() {
        let entry = |kind| Entry { kind, ..directory(b"x".to_vec()) };
        let file = Kind::File { bytes: 1, sparse: false };
        let mut list = List::default();
        list.push(entry(Kind::Directory)).unwrap();
        for kind in [
            Kind::HardLink(0),
            Kind::HardLink(1),
            Kind::HardLink(u32::MAX),
            Kind::Symlink(vec![]),
            Kind::Symlink(b"a\0b".to_vec()),
            Kind::Symlink(vec![b'x'; MAX_PATH + 1]),
        ] {
            assert!(list.push(entry(kind.clone())).is_err(), "{kind:?}");
        }
        list.push(entry(file)).unwrap();
        list.push(entry(Kind::HardLink(1))).unwrap();
        list.push(entry(Kind::Symlink(b"../anywhere".to_vec()))).unwrap();
        let xattr = |name: &[u8]| Xattr { name: name.to_vec(), value: vec![] };
        for name in [&b"trusted.x"[..], b"security.capability", b"user.a\0b", b""] {
            let entry = Entry { xattrs: vec![xattr(name)], ..directory(b"y".to_vec()) };
            assert!(list.push(entry).is_err(), "{name:?}");
        }
    }

    #[test]
    fn every_entry_is_looked_at_when_it_comes() {
        let mut list = List::default();
        list.push(directory(b"a".to_vec())).unwrap();
        assert!(list.push(directory(b"../a".to_vec())).is_err());
        let mtime = Timestamp { secs: 0, nanos: 1_000_000_000 };
        assert!(list.push(Entry { mtime, ..directory(b"b".to_vec()) }).is_err());
        list.push(directory(b"a".to_vec())).unwrap();
        assert!(list.finish().unwrap_err().to_string().contains("occurs twice"));
    }
}
