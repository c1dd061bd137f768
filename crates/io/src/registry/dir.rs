//! Where processes of one user meet.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::RegistryError;
use crate::sys::effective_uid;

/// The directory in memory for what processes of this user keep while they run, made if it is not
/// there. Nobody else can look into it.
pub fn runtime_dir() -> Result<PathBuf, RegistryError> {
    open(None)
}

/// The directory for this user's registries, made if it is not there: below `base`, or below
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
    // Not following links: in a directory that all may write to, a link could be anybody's.
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

/// What the files of an address and port start with.
pub(super) fn stem(addr: IpAddr, udp_port: u16) -> String {
    // Colons are legal in file names but annoy those who have to type them.
    format!("{addr}-{udp_port}").replace(':', "_")
}
