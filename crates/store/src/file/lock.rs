//! The lock of a job's directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::PATIENCE;

pub(super) const LOCK_NAME: &str = ".bowline-lock";

/// Takes a directory's lock, held until the file is dropped. The kernel releases it when a process
/// dies; if its holder is stopped, others give up after a second.
pub(super) fn acquire(dir: &Path) -> io::Result<File> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    loop {
        if let Some(lock) = try_acquire(dir)? {
            return Ok(lock);
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("another process holds {LOCK_NAME} and does not go on"),
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Takes a directory's lock if it is free.
pub(super) fn try_acquire(dir: &Path) -> io::Result<Option<File>> {
    let path = dir.join(LOCK_NAME);
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The directory may have been removed and recreated by others, who then have another lock.
    let (ours, theirs) = (file.metadata()?, std::fs::metadata(&path)?);
    Ok((ours.ino() == theirs.ino() && ours.dev() == theirs.dev()).then_some(file))
}
