//! A store in a directory: `DIR/JOB/KEY`, local to a host or on a shared mount.
//!
//! A file is replaced by a rename, so that readers see an entry whole or not at all. Writers of a
//! job are serialised by a lock. Each file contains its expiry time; hosts that share a mount
//! should agree about the time to well below the life of an entry.

mod lock;
mod sweep;

#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::entry::OVERHEAD_BYTES;
use crate::key::Job;
use crate::owned::Backend;
use crate::sys::effective_uid;
use crate::{Key, MAX_VALUE_BYTES, StoreError};

/// Prefix of names that are not entries. No part of a key starts with it.
const TEMP_PREFIX: &str = ".bowline-tmp-";
/// How often to start over when the directory is removed meanwhile.
const MAX_ATTEMPTS: u32 = 4;
/// How often to look for entries that have expired.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
const HINT: &str = "check that this user may write there and that there is room; \
                    it is tried again later";

pub(crate) struct FileBackend {
    url: String,
    base: PathBuf,
    dir: PathBuf,
    swept: Option<Instant>,
}

impl FileBackend {
    pub(crate) fn new(base: PathBuf, job: &Job) -> FileBackend {
        let url = format!("file://{}", base.display());
        FileBackend { url, dir: base.join(job.as_str()), base, swept: None }
    }

    fn path(&self, key: &Key) -> PathBuf {
        // No key contains `+`, so no two keys share a file.
        self.dir.join(key.as_str().replace('/', "+"))
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::Unavailable { store: self.url.clone(), doing, source, hint: HINT }
    }

    /// Checks that the job's directory belongs to this user alone: otherwise anybody could redirect
    /// its traffic. Does not follow links, which anybody could have created.
    fn check_dir(&self) -> Result<(), StoreError> {
        let found = match fs::symlink_metadata(&self.dir) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.failed("looking at the job's directory", error)),
        };
        let uid = effective_uid();
        if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
            return Ok(());
        }
        Err(StoreError::Refused {
            store: self.url.clone(),
            why: format!(
                "{} must be a directory that user {uid} owns and nobody else may enter (mode 0700); \
                 remove it, or name another directory or job",
                self.dir.display()
            ),
        })
    }

    fn make_dir(&self) -> Result<(), StoreError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| self.failed("making the job's directory", error))?;
        self.check_dir()
    }

    /// Replaces a file if it still holds what was `seen`, under the job's lock.
    fn replace_locked(
        &self,
        key: &Key,
        seen: Option<&[u8]>,
        new: Option<(&[u8], Duration)>,
    ) -> io::Result<bool> {
        let _lock = lock::acquire(&self.dir)?;
        let path = self.path(key);
        if read_entry(&path)?.as_deref() != seen {
            return Ok(false);
        }
        match new {
            Some((bytes, ttl)) => write_entry(&path, bytes, now_ms().saturating_add(millis(ttl)))?,
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        Ok(true)
    }

    /// Occasionally removes expired entries, of this job and of jobs that are gone.
    fn sweep(&mut self) {
        if self.swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
            self.swept = Some(Instant::now());
            sweep::sweep(&self.base, &self.dir);
        }
    }
}

impl Backend for FileBackend {
    fn url(&self) -> &str {
        &self.url
    }

    fn load(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.check_dir()?;
        read_entry(&self.path(key)).map_err(|error| self.failed("reading an entry", error))
    }

    fn replace(
        &mut self,
        key: &Key,
        seen: Option<&[u8]>,
        new: Option<(&[u8], Duration)>,
    ) -> Result<bool, StoreError> {
        self.sweep();
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.make_dir()?;
            match self.replace_locked(key, seen, new) {
                Ok(done) => return Ok(done),
                // The directory was removed after it was created.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < MAX_ATTEMPTS => {
                }
                Err(error) => return Err(self.failed("writing an entry", error)),
            }
        }
    }
}

/// What a file holds, if there is one and it has not expired.
fn read_entry(path: &Path) -> io::Result<Option<Vec<u8>>> {
    const MAX: usize = ExpiryLine::LEN + OVERHEAD_BYTES + MAX_VALUE_BYTES;
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX as u64).read_to_end(&mut bytes)?;
    Ok(match ExpiryLine::split(&bytes) {
        Some((expires_ms, _)) if expires_ms <= now_ms() => None,
        Some((_, entry)) => Some(entry.to_vec()),
        // Not ours: returned as it is, for the caller to reject or to replace.
        None => Some(bytes),
    })
}

/// Replaces a file. It is not synced to disk: no entry outlives its process by much.
fn write_entry(path: &Path, entry: &[u8], expires_ms: u64) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Hosts that share a mount may have processes with the same ID, but not the job's lock at the
    // same time.
    let temp = path.with_file_name(format!("{TEMP_PREFIX}{}-{count}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temp)
        .and_then(|mut file| {
            file.write_all(&ExpiryLine::render(expires_ms))?;
            file.write_all(entry)
        })
        .and_then(|()| fs::rename(&temp, path));
    if written.is_err() {
        // It may never have existed.
        let _ = fs::remove_file(&temp);
    }
    written
}

/// The first line of a file: its expiry time, in milliseconds of the Unix epoch.
struct ExpiryLine;

impl ExpiryLine {
    const LEN: usize = 21;

    fn render(expires_ms: u64) -> [u8; ExpiryLine::LEN] {
        let mut line = [b'\n'; ExpiryLine::LEN];
        for (digit, at) in format!("{expires_ms:020}").bytes().zip(&mut line) {
            *at = digit;
        }
        line
    }

    fn split(bytes: &[u8]) -> Option<(u64, &[u8])> {
        let (line, rest) = bytes.split_at_checked(ExpiryLine::LEN)?;
        let digits = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let is_number = digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| Some((digits.parse().ok()?, rest)))?
    }
}

fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
