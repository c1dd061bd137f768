//! Unpacks the libraries inside the program to files in the user's cache.
//!
//! `cargo install` installs only programs, so the libraries are embedded in the program. A loader
//! needs files. They are written once, to a directory named after their contents, and compared with
//! the embedded ones each time. Nobody else may be able to write there, because this user's
//! programs execute the code.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::cache;

/// A path below the libraries' directory, and the file's contents.
type Carried = (&'static str, &'static [u8]);

/// The embedded files: none in a build without the feature.
#[cfg(feature = "embed")]
static CARRIED: &[Carried] = bowline_embed::verbs_libraries!();
#[cfg(not(feature = "embed"))]
static CARRIED: &[Carried] = &[];

/// Writes the libraries to the first suitable directory, unless they are already there, and returns
/// the directory. Returns `None` if this program embeds none.
pub(super) fn unpack() -> Result<Option<PathBuf>, String> {
    if CARRIED.is_empty() {
        return Ok(None);
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut refusals = Vec::new();
    for place in places(uid) {
        match unpack_to(&place, CARRIED, uid) {
            Ok(dir) => return Ok(Some(dir)),
            Err(why) => refusals.push(why),
        }
    }
    Err(format!(
        "cannot unpack the verbs library: {}; set XDG_CACHE_HOME to a directory of your own, or \
         name the library in BOWLINE_VERBS",
        refusals.join("; ")
    ))
}

/// The user's cache, then the directory for temporary files.
fn places(uid: u32) -> Vec<PathBuf> {
    // Under sudo, HOME may belong to another user, who could not use a directory that root owns
    // there.
    let own = |dir: &PathBuf| {
        let nearest = dir.ancestors().find_map(|dir| fs::metadata(dir).ok());
        nearest.is_some_and(|found| found.uid() == uid)
    };
    let temporary = std::env::temp_dir().join(format!("bowline-{uid}"));
    cache::dir().filter(own).into_iter().chain([temporary]).collect()
}

/// Creates a directory that only this user can write to, or checks that an existing one is.
fn make_private(dir: &Path, uid: u32) -> Result<(), String> {
    let says = |e: io::Error| format!("{}: {e}", dir.display());
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(says(e)),
        _ => {}
    }
    let found = fs::symlink_metadata(dir).map_err(says)?;
    if !found.is_dir() {
        return Err(format!("{} is not a directory", dir.display()));
    }
    if found.uid() != uid || found.mode() & 0o022 != 0 {
        return Err(format!("{}: others than user {uid} can write to it", dir.display()));
    }
    Ok(())
}

fn unpack_to(place: &Path, files: &[Carried], uid: u32) -> Result<PathBuf, String> {
    let dir = place.join(format!("verbs-{}", digest(files)));
    // The loader treats both characters as separators.
    if dir.to_string_lossy().contains([':', ' ']) {
        return Err(format!("{}: LD_PRELOAD allows no colon or space", dir.display()));
    }
    let says = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent).map_err(|e| says(parent, e))?;
    }
    make_private(place, uid)?;
    make_private(&dir, uid)?;
    let mounted = statvfs(&dir).map_err(|e| says(&dir, e.into()))?;
    if mounted.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(format!("{} is mounted noexec", dir.display()));
    }
    for (name, bytes) in files {
        let path = dir.join(name);
        if let Some(parent) = path.parent().filter(|parent| *parent != dir) {
            make_private(parent, uid)?;
        }
        if !holds(&path, bytes) {
            write(&path, bytes).map_err(|e| says(&path, e))?;
        }
    }
    Ok(dir)
}

/// A name for the contents, so that versions of the program do not replace each other's libraries
/// while programs use them.
fn digest(files: &[Carried]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, bytes) in files {
        hasher.update(name.as_bytes()).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn holds(path: &Path, bytes: &[u8]) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    is_file && fs::read(path).is_ok_and(|found| found == bytes)
}

/// Writes a file atomically, even if another process does the same.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    // A killed process with the same PID may have left this file.
    let _ = fs::remove_file(&partial);
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&partial)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const FILES: &[Carried] = &[("lib.so", b"library"), ("sub/lib.so.1", b"versioned")];

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = format!("bowline-unpack-{}-{name}", std::process::id());
            let dir = std::env::temp_dir().join(dir);
            fs::create_dir_all(&dir).unwrap();
            Scratch(dir)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn files_are_written_once_and_repaired() {
        let scratch = Scratch::new("once");
        let place = scratch.0.join("deep/cache");
        let dir = unpack_to(&place, FILES, uid()).unwrap();
        assert_eq!(fs::read(dir.join("lib.so")).unwrap(), b"library");
        assert_eq!(fs::read(dir.join("sub/lib.so.1")).unwrap(), b"versioned");
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let first = fs::metadata(dir.join("lib.so")).unwrap().ino();
        assert_eq!(unpack_to(&place, FILES, uid()).unwrap(), dir);
        assert_eq!(fs::metadata(dir.join("lib.so")).unwrap().ino(), first, "written again");
        fs::write(dir.join("lib.so"), "libr").unwrap();
        unpack_to(&place, FILES, uid()).unwrap();
        assert_eq!(fs::read(dir.join("lib.so")).unwrap(), b"library");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "a partial file is left");
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let scratch = Scratch::new("link");
        let dir = unpack_to(&scratch.0.join("c"), FILES, uid()).unwrap();
        let other = scratch.0.join("other");
        fs::write(&other, "library").unwrap();
        fs::remove_file(dir.join("lib.so")).unwrap();
        symlink(&other, dir.join("lib.so")).unwrap();
        unpack_to(&scratch.0.join("c"), FILES, uid()).unwrap();
        assert!(fs::symlink_metadata(dir.join("lib.so")).unwrap().is_file());
    }

    #[test]
    fn directories_that_others_can_write_to_are_refused() {
        let scratch = Scratch::new("open");
        let place = scratch.0.join("cache");
        let dir = unpack_to(&place, FILES, uid()).unwrap();
        for open in [&place, &dir, &dir.join("sub")] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
            let error = unpack_to(&place, FILES, uid()).unwrap_err();
            assert!(error.contains("can write to it"), "{error}");
            fs::set_permissions(open, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let error = unpack_to(&place, FILES, uid() + 1).unwrap_err();
        assert!(error.contains("can write to it"), "{error}");
        symlink(&place, scratch.0.join("led")).unwrap();
        let error = unpack_to(&scratch.0.join("led"), FILES, uid()).unwrap_err();
        assert!(error.contains("is not a directory"), "{error}");
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        let scratch = Scratch::new("split");
        for name in ["with space", "with:colon"] {
            let error = unpack_to(&scratch.0.join(name), FILES, uid()).unwrap_err();
            assert!(error.contains("LD_PRELOAD allows no"), "{error}");
        }
    }

    #[test]
    fn other_contents_have_another_directory() {
        assert_ne!(digest(FILES), digest(&FILES[..1]));
        assert_ne!(digest(&[("a", b"bc")]), digest(&[("ab", b"c")]));
    }
}
