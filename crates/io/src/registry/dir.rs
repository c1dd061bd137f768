//! The directory where the processes of one user find each other.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::RegistryError;
use crate::sys::effective_uid;

/// The in-memory directory for this user's runtime files, created if missing. Nobody else can read
/// it.
pub fn runtime_dir() -> Result<PathBuf, RegistryError> {
    open(None)
}

/// The directory for this user's registries, created if missing: below `base`, or below
/// `$XDG_RUNTIME_DIR`, or in shared memory.
pub(super) fn open(base: Option<&Path>) -> Result<PathBuf, RegistryError> {
    let uid = effective_uid();
    let dir = match base.map(Path::to_owned).or_else(base_of_session) {
        Some(base) => base.join("bowline"),
        None => PathBuf::from(format!("/dev/shm/bowline-{uid}")),
    };
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(RegistryError::file(&dir)(error)),
    }
    // Do not follow links: in a world-writable directory, anybody could have created one.
    let found = std::fs::symlink_metadata(&dir).map_err(RegistryError::file(&dir))?;
    if is_private(&found, uid) {
        Ok(dir)
    } else {
        Err(RegistryError::NotPrivate { path: dir, uid })
    }
}

fn base_of_session() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())
}

fn is_private(found: &Metadata, uid: u32) -> bool {
    found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0
}

/// Common file name prefix of an address and port.
pub(super) fn stem(addr: IpAddr, udp_port: u16) -> String {
    // Colons are legal in file names but awkward to type.
    format!("{addr}-{udp_port}").replace(':', "_")
}
