//! Scans the tree under the paths that the user named.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Failure;
use super::filter::Filter;
use super::message::{Entry, Kind, MAX_PATH, Timestamp};
use super::partial;
use super::tree::Tree;
use super::xattr;

/// The files and directories to send, and their paths.
pub(super) struct Source {
    pub(super) tree: Tree,
    /// The path of each entry.
    pub(super) paths: Vec<PathBuf>,
    /// Entries that cannot be sent because of their type, with the reason.
    pub(super) notes: Vec<String>,
    /// Entries that could not be read, with the reason.
    pub(super) unread: Vec<(String, String)>,
}

/// Which properties of each entry to send, and which entries to leave out.
#[derive(Debug, Default)]
pub(super) struct ScanOptions {
    pub(super) filter: Filter,
    pub(super) owner: bool,
    pub(super) xattrs: bool,
}

/// A scan in progress.
struct Scan<'a> {
    options: &'a ScanOptions,
    source: Source,
    /// Files with several names, by device and inode number: the entry that has the contents.
    linked: HashMap<(u64, u64), u32>,
}

impl Source {
    /// Scans the named paths. Each arrives under its last component.
    pub(super) fn scan(named: &[PathBuf], options: &ScanOptions) -> Result<Source, Failure> {
        let source = Source { tree: Tree::default(), paths: vec![], notes: vec![], unread: vec![] };
        let mut scan = Scan { options, source, linked: HashMap::new() };
        let mut names = HashSet::new();
        for path in named {
            let failed = |e| format!("cannot read {}: {e}", path.display());
            // The user may name a link, and `.` gets a name only this way.
            let real = path.canonicalize().map_err(failed)?;
            let name = path.file_name().or(real.file_name()).map(|name| name.as_bytes().to_vec());
            let name = name.ok_or_else(|| format!("{} has no name to send", path.display()))?;
            if !names.insert(name.clone()) {
                let name = String::from_utf8_lossy(&name);
                return Err(format!("{name} is named twice: send them one after the other").into());
            }
            let metadata = fs::metadata(&real).map_err(failed)?;
            scan.add(real, name, &metadata)?;
        }
        Ok(scan.source)
    }

    /// One file with a given name, for data from stdin.
    pub(super) fn single(path: PathBuf, name: &str) -> Result<Source, Failure> {
        let metadata = fs::metadata(&path)?;
        let options = ScanOptions::default();
        let source = Source { tree: Tree::default(), paths: vec![], notes: vec![], unread: vec![] };
        let mut scan = Scan { options: &options, source, linked: HashMap::new() };
        scan.add(path, name.as_bytes().to_vec(), &metadata)?;
        Ok(scan.source)
    }
}

impl Scan<'_> {
    fn add(&mut self, path: PathBuf, name: Vec<u8>, metadata: &Metadata) -> Result<(), Failure> {
        let kind = metadata.file_type();
        if name.len() > MAX_PATH {
            return Err(format!("{} has too long a name", path.display()).into());
        }
        if partial::is_reserved(&name) {
            return self.skip(&path, "it is a partial file of another transfer");
        }
        if self.options.filter.leaves_out(&name, kind.is_dir()) {
            return Ok(());
        }
        if kind.is_dir() {
            self.push(Kind::Directory, &name, &path, metadata)?;
            self.add_children(&path, &name)
        } else if kind.is_file() {
            let kind = self.kind_of_file(metadata);
            self.push(kind, &name, &path, metadata)
        } else if kind.is_symlink() {
            match fs::read_link(&path) {
                Ok(target) => {
                    let kind = Kind::Symlink(target.into_os_string().into_vec());
                    self.push(kind, &name, &path, metadata)
                }
                Err(e) => self.unread(&name, &e),
            }
        } else {
            self.skip(&path, "it is neither a file, nor a directory, nor a link")
        }
    }

    fn kind_of_file(&mut self, metadata: &Metadata) -> Kind {
        if metadata.nlink() > 1 {
            let index = self.source.paths.len() as u32;
            let first = *self.linked.entry((metadata.dev(), metadata.ino())).or_insert(index);
            if first != index {
                return Kind::HardLink(first);
            }
        }
        let bytes = metadata.len();
        Kind::File { bytes, sparse: metadata.blocks().saturating_mul(512) < bytes }
    }

    fn add_children(&mut self, dir: &Path, name: &[u8]) -> Result<(), Failure> {
        let children = fs::read_dir(dir)
            .and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect::<Result<Vec<_>, _>>());
        let mut children = match children {
            Ok(children) => children,
            Err(e) => return self.unread(name, &e),
        };
        // The same tree must give the same list, whatever the order in the file system.
        children.sort();
        for child in children {
            let path = dir.join(&child);
            let name = [name, b"/", OsStr::as_bytes(&child)].concat();
            match fs::symlink_metadata(&path) {
                Ok(metadata) => self.add(path, name, &metadata)?,
                Err(e) => self.unread(&name, &e)?,
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        kind: Kind,
        name: &[u8],
        path: &Path,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let xattrs = match kind {
            Kind::File { .. } | Kind::Directory if self.options.xattrs => match xattr::list(path) {
                Ok(xattrs) => xattrs,
                Err(e) => {
                    self.source.notes.push(format!(
                        "sending {} without its extended attributes: {e}",
                        path.display()
                    ));
                    Vec::new()
                }
            },
            _ => Vec::new(),
        };
        let entry = Entry {
            path: name.to_vec(),
            kind,
            mode: metadata.permissions().mode() & 0o777,
            mtime: mtime(metadata),
            owner: self.options.owner.then(|| (metadata.uid(), metadata.gid())),
            xattrs,
        };
        self.source.paths.push(path.to_owned());
        let pushed = self.source.tree.push(entry);
        let why = "too many files or bytes for one transfer: split it into several";
        pushed.ok_or_else(|| why.into())
    }

    fn skip(&mut self, path: &Path, why: &str) -> Result<(), Failure> {
        self.source.notes.push(format!("skipping {}: {why}", path.display()));
        Ok(())
    }

    /// Leaves out an entry that cannot be read. The scan continues.
    fn unread(&mut self, name: &[u8], e: &std::io::Error) -> Result<(), Failure> {
        let name = String::from_utf8_lossy(name).into_owned();
        self.source.unread.push((name, format!("cannot read it: {e}")));
        Ok(())
    }
}

/// A file's modification time.
pub(super) fn mtime(metadata: &Metadata) -> Timestamp {
    Timestamp { secs: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 }
}
