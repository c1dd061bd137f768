//! The receiver's directory. Nothing that a sender sends can lead out of it.
//!
//! Every path is walked from the directory's own descriptor, component by component, without
//! following links. Therefore neither a name nor an existing link can lead elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{
    AtFlags, Dir as Listing, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps,
    Uid, fchmod, fchown, fstatvfs, futimens, linkat, mkdirat, open, openat, readlinkat, renameat,
    renameat_with, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::Failure;
use super::filter::Filter;
use super::message::{Entry, MAX_PATH, Timestamp};
use super::{partial, xattr};

/// Maximum nesting depth.
const MAX_DEPTH: usize = 256;

/// A directory and everything in it.
pub(super) struct Dir {
    shown: PathBuf,
    root: OwnedFd,
    pub(super) rights: Rights,
    /// The directory used last, because entries of one directory come together.
    last: Mutex<Option<(Vec<u8>, std::sync::Arc<OwnedFd>)>>,
}

/// What may already exist in a file's place.
pub(super) enum Found {
    Nothing,
    File(Stat),
    Symlink,
    /// Something else.
    Other,
}

/// What the receiver's user allows senders to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rights {
    /// Replace files that exist and differ.
    pub(super) overwrite: bool,
    /// Delete files that the sender does not have.
    pub(super) delete: bool,
    /// Set the owners that the sender names.
    pub(super) owner: bool,
    /// Set extended attributes.
    pub(super) xattrs: bool,
}

impl Dir {
    pub(super) fn open(path: &Path, rights: Rights) -> Result<Dir, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty())
            .map_err(|e| format!("cannot receive into {}: {e}", path.display()))?;
        Ok(Dir { shown: path.to_owned(), root, rights, last: Mutex::default() })
    }

    /// The error if something could not be done to an entry.
    pub(super) fn why(&self, doing: &str, entry: &Entry, e: &io::Error) -> String {
        let hint = match e.kind() {
            io::ErrorKind::StorageFull => " (free some space, then send again to resume)",
            io::ErrorKind::PermissionDenied => " (check that this user has write permission there)",
            _ => "",
        };
        format!("cannot {doing} {}: {e}{hint}", self.shown.join(entry.name()).display())
    }

    /// Bytes that this user may still write.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let stat = fstatvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The directory that contains an entry, and the entry's name in it.
    fn parent<'a>(&self, entry: &'a Entry) -> io::Result<(std::sync::Arc<OwnedFd>, &'a OsStr)> {
        let at = entry.path.iter().rposition(|byte| *byte == b'/');
        let (dir, name) = match at {
            Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
            None => (&[][..], &entry.path[..]),
        };
        let name = OsStr::from_bytes(name);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((path, fd)) = &*last
            && path == dir
        {
            return Ok((fd.clone(), name));
        }
        let mut fd = self.root.try_clone()?;
        for component in dir.split(|byte| *byte == b'/').filter(|c| !c.is_empty()) {
            fd = open_dir(&fd, OsStr::from_bytes(component))?;
        }
        let fd = std::sync::Arc::new(fd);
        *last = Some((dir.to_vec(), fd.clone()));
        Ok((fd, name))
    }

    /// Creates a directory unless it exists. Returns whether it did.
    pub(super) fn make_dir(&self, entry: &Entry) -> io::Result<bool> {
        let (parent, name) = self.parent(entry)?;
        // The receiver has to write into it, whatever its final permissions are.
        match mkdirat(&*parent, name, Mode::from_raw_mode(entry.mode & 0o777 | 0o700)) {
            Err(Errno::EXIST) => open_dir(&parent, name).map(|_| false),
            made => Ok(made.map(|()| true)?),
        }
    }

    /// Gives a directory its permissions and time.
    pub(super) fn finish_dir(&self, entry: &Entry) -> io::Result<()> {
        let (parent, name) = self.parent(entry)?;
        self.finish(&open_dir(&parent, name)?.into(), entry)
    }

    fn finish(&self, file: &File, entry: &Entry) -> io::Result<()> {
        if let (true, Some((user, group))) = (self.rights.owner, entry.owner) {
            fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        if self.rights.xattrs {
            xattr::set(file, entry)?;
        }
        fchmod(file, Mode::from_raw_mode(entry.mode & 0o777))?;
        Ok(futimens(file, &times(entry))?)
    }

    /// What exists in an entry's place.
    pub(super) fn find(&self, entry: &Entry) -> io::Result<Found> {
        let (parent, name) = self.parent(entry)?;
        match statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Found::File(stat))
            }
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                Ok(Found::Symlink)
            }
            Ok(_) => Ok(Found::Other),
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(e) => Err(e.into()),
        }
    }

    /// Opens the file in an entry's place for reading.
    pub(super) fn open_file(&self, entry: &Entry) -> io::Result<File> {
        let (parent, name) = self.parent(entry)?;
        open_file(&parent, name, OFlags::RDONLY)
    }

    /// Opens an entry's partial file and its records for reading.
    pub(super) fn open_partial(&self, entry: &Entry) -> io::Result<(File, File)> {
        let (parent, name) = self.parent(entry)?;
        let part = open_file(&parent, &partial::part_name(name), OFlags::RDONLY)?;
        Ok((part, open_file(&parent, &partial::state_name(name), OFlags::RDONLY)?))
    }

    /// Opens an entry's partial file for writing.
    pub(super) fn create_part(&self, entry: &Entry) -> io::Result<File> {
        let (parent, name) = self.parent(entry)?;
        open_file(&parent, &partial::part_name(name), OFlags::RDWR | OFlags::CREATE)
    }

    /// Opens the records of an entry's partial file for writing.
    pub(super) fn create_state(&self, entry: &Entry) -> io::Result<File> {
        let (parent, name) = self.parent(entry)?;
        open_file(&parent, &partial::state_name(name), OFlags::RDWR | OFlags::CREATE)
    }

    /// Moves a complete partial file to its final name.
    pub(super) fn publish(&self, entry: &Entry, part: &File) -> io::Result<()> {
        self.finish(part, entry)?;
        let (parent, name) = self.parent(entry)?;
        self.rename(&parent, name)?;
        match unlinkat(&*parent, partial::state_name(name), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Renames a partial file to its final name, in one step.
    fn rename(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let part = partial::part_name(name);
        let plain = || renameat(parent, &*part, parent, name);
        let renamed = if self.rights.overwrite {
            plain()
        } else {
            // The file may have been created in the meantime.
            match renameat_with(parent, &*part, parent, name, RenameFlags::NOREPLACE) {
                // Some file systems do not support this.
                Err(Errno::INVAL | Errno::NOSYS) => plain(),
                renamed => renamed,
            }
        };
        Ok(renamed?)
    }

    /// Creates a symbolic link, unless the same one exists. The link cannot lead a transfer
    /// elsewhere, because nothing here follows links.
    pub(super) fn symlink(&self, entry: &Entry, target: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(entry)?;
        if readlinkat(&*parent, name, Vec::new()).is_ok_and(|found| found.as_bytes() == target) {
            return Ok(());
        }
        let part = partial::part_name(name);
        let _ = unlinkat(&*parent, &*part, AtFlags::empty());
        symlinkat(OsStr::from_bytes(target), &*parent, &*part)?;
        // Not every file system stores the times of links.
        let _ = utimensat(&*parent, &*part, &times(entry), AtFlags::SYMLINK_NOFOLLOW);
        self.rename(&parent, name)
    }

    /// Creates another hard link to a file that has arrived.
    pub(super) fn hard_link(&self, entry: &Entry, first: &Entry) -> io::Result<()> {
        let (from, from_name) = self.parent(first)?;
        let (parent, name) = self.parent(entry)?;
        let stat = |dir: &OwnedFd, name: &OsStr| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let source = stat(&from, from_name)?;
        if stat(&parent, name)
            .is_ok_and(|old| (old.st_dev, old.st_ino) == (source.st_dev, source.st_ino))
        {
            return Ok(());
        }
        let part = partial::part_name(name);
        let _ = unlinkat(&*parent, &*part, AtFlags::empty());
        linkat(&*from, from_name, &*parent, &*part, AtFlags::empty())?;
        self.rename(&parent, name)
    }

    /// Removes the entries of a directory that are not in `keep`, unless the filter excludes them.
    /// Returns their paths. A dry run removes nothing.
    pub(super) fn remove_others(
        &self,
        entry: &Entry,
        keep: impl Fn(&[u8]) -> bool,
        filter: &Filter,
        dry_run: bool,
    ) -> io::Result<Vec<Vec<u8>>> {
        let (parent, name) = self.parent(entry)?;
        let dir = match open_dir(&parent, name) {
            Err(e) if dry_run && e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut removed = Vec::new();
        for (child, is_dir) in children(&dir)? {
            let path = [&entry.path[..], b"/", child.as_bytes()].concat();
            let is_kept = keep(&path) || partial::is_reserved(child.as_bytes());
            if is_kept || filter.leaves_out(&path, is_dir) {
                continue;
            }
            if !dry_run {
                remove(&dir, &child, is_dir, MAX_DEPTH)?;
            }
            removed.push(path);
        }
        Ok(removed)
    }
}

/// The entries of a directory, and whether each is a directory.
fn children(dir: &OwnedFd) -> io::Result<Vec<(std::ffi::OsString, bool)>> {
    let mut found = Vec::new();
    for entry in Listing::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let name = OsStr::from_bytes(name).to_owned();
        let stat = statat(dir, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        found.push((name, FileType::from_raw_mode(stat.st_mode) == FileType::Directory));
    }
    found.sort();
    Ok(found)
}

/// Removes a file, or a directory and its contents. Links are removed, not followed.
fn remove(parent: &OwnedFd, name: &OsStr, is_dir: bool, depth: usize) -> io::Result<()> {
    if !is_dir {
        return Ok(unlinkat(parent, name, AtFlags::empty())?);
    }
    if depth == 0 {
        return Err(io::Error::other("it is nested too deep"));
    }
    let dir = open_dir(parent, name)?;
    for (child, is_dir) in children(&dir)? {
        remove(&dir, &child, is_dir, depth - 1)?;
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn times(entry: &Entry) -> Timestamps {
    let Timestamp { secs, nanos } = entry.mtime;
    let time = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Checks whether a sender's path is acceptable at all. The error says why not.
pub(super) fn check_path(path: &[u8]) -> Result<(), &'static str> {
    if path.is_empty() || path.len() > MAX_PATH {
        return Err("it is empty or too long");
    }
    if path.contains(&0) {
        return Err("it has a zero byte");
    }
    let components: Vec<_> = path.split(|byte| *byte == b'/').collect();
    if components.len() > MAX_DEPTH {
        return Err("it is nested too deep");
    }
    if components.iter().any(|c| c.is_empty() || *c == b"." || *c == b"..") {
        return Err("it leads out of the directory, or has an empty or `.` component");
    }
    if components.iter().any(|c| partial::is_reserved(c)) {
        return Err("its name is reserved for partial files");
    }
    Ok(())
}

fn open_dir(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn open_file(parent: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
    // Opening something that is not a file, such as a pipe, must not block.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let wrong: [&[u8]; 12] = [
            b"",
            b"/etc/passwd",
            b"..",
            b"a/../b",
            b"a/..",
            b"../a",
            b".",
            b"a/./b",
            b"a//b",
            b"a/",
            b"a\0b",
            b"x.bowline-part",
        ];
        for path in wrong {
            assert!(check_path(path).is_err(), "{}", String::from_utf8_lossy(path));
        }
        assert!(check_path(&b"a/".repeat(MAX_DEPTH + 1)).is_err());
        for path in [&b"a"[..], b"a/b", b"...", b"a/..b", b"\xff\xfe", b".hidden"] {
            assert!(check_path(path).is_ok(), "{}", String::from_utf8_lossy(path));
        }
    }
}
