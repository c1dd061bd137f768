//! What is to be sent: the tree under the paths that the user named.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Failure;
use super::message::{Entry, Kind, MAX_PATH, Timestamp};
use super::partial;
use super::tree::Tree;

/// The files and directories to send, and where they are.
pub(super) struct Source {
    pub(super) tree: Tree,
    /// Of each entry.
    pub(super) paths: Vec<PathBuf>,
    /// What is not sent, and why.
    pub(super) notes: Vec<String>,
}

impl Source {
    /// Walks the named paths. Each arrives under its last component.
    pub(super) fn scan(named: &[PathBuf]) -> Result<Source, Failure> {
        let mut source = Source { tree: Tree::default(), paths: vec![], notes: vec![] };
        let mut names = HashSet::new();
        for path in named {
            let failed = |e| format!("cannot read {}: {e}", path.display());
            // What the user names may be a link, and `.` has a name only so.
            let real = path.canonicalize().map_err(failed)?;
            let name = path.file_name().or(real.file_name()).map(|name| name.as_bytes().to_vec());
            let name = name.ok_or_else(|| format!("{} has no name to send", path.display()))?;
            if !names.insert(name.clone()) {
                let name = String::from_utf8_lossy(&name);
                return Err(format!("{name} is named twice: send them one after the other").into());
            }
            let metadata = fs::metadata(&real).map_err(failed)?;
            source.add(real, name, &metadata)?;
        }
        Ok(source)
    }

    fn add(&mut self, path: PathBuf, name: Vec<u8>, metadata: &Metadata) -> Result<(), Failure> {
        let kind = metadata.file_type();
        if name.len() > MAX_PATH {
            return Err(format!("{} has too long a name", path.display()).into());
        }
        if partial::is_reserved(&name) {
            return self.skip(&path, "it is a partial file of another transfer");
        }
        let entry = |kind| Entry {
            path: name.clone(),
            kind,
            mode: metadata.permissions().mode() & 0o777,
            mtime: mtime(metadata),
        };
        if kind.is_dir() {
            self.push(entry(Kind::Directory), &path)?;
            self.add_children(&path, &name)
        } else if kind.is_file() {
            self.push(entry(Kind::File(metadata.len())), &path)
        } else if kind.is_symlink() {
            self.skip(&path, "it is a symbolic link")
        } else {
            self.skip(&path, "it is neither a file nor a directory")
        }
    }

    fn add_children(&mut self, dir: &Path, name: &[u8]) -> Result<(), Failure> {
        let failed = |e| format!("cannot read {}: {e}", dir.display());
        let mut children = fs::read_dir(dir)
            .and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect::<Result<Vec<_>, _>>())
            .map_err(failed)?;
        // The same tree is the same list, whatever order the file system has.
        children.sort();
        for child in children {
            let path = dir.join(&child);
            let name = [name, b"/", OsStr::as_bytes(&child)].concat();
            let metadata = fs::symlink_metadata(&path)
                .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            self.add(path, name, &metadata)?;
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry, path: &Path) -> Result<(), Failure> {
        self.paths.push(path.to_owned());
        self.tree.push(entry).ok_or_else(|| "this is more than one transfer can carry".into())
    }

    fn skip(&mut self, path: &Path, why: &str) -> Result<(), Failure> {
        self.notes.push(format!("skipping {}: {why}", path.display()));
        Ok(())
    }
}

/// When a file was last changed.
pub(super) fn mtime(metadata: &Metadata) -> Timestamp {
    Timestamp { secs: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 }
}
