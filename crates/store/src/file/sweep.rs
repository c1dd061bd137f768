//! Removes expired entries.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use super::lock::{self, LOCK_NAME};
use super::{ExpiryLine, TEMP_PREFIX, now_ms};
use crate::PATIENCE;
use crate::entry::MAGIC;

/// A file that was started this long ago will not be finished.
const ABANDONED: Duration = Duration::from_secs(60);

/// Removes expired entries and unfinished files, of all jobs below `base`, and directories that are
/// then empty, except `keep`. Failures are left to the next sweep, and it stops after a while.
pub(super) fn sweep(base: &Path, keep: &Path) {
    let deadline = Instant::now() + PATIENCE / 2;
    let Ok(jobs) = fs::read_dir(base) else {
        return;
    };
    for job in jobs.flatten() {
        if Instant::now() >= deadline {
            return;
        }
        let dir = job.path();
        // Only directories of a store: others may share this one.
        if job.file_type().is_ok_and(|t| t.is_dir()) && dir.join(LOCK_NAME).exists() {
            let _ = sweep_job(&dir, dir != keep, deadline);
        }
    }
}

fn sweep_job(dir: &Path, remove_empty: bool, deadline: Instant) -> io::Result<()> {
    // Under the lock: an entry that is being refreshed must not be removed as expired.
    let Some(_lock) = lock::try_acquire(dir)? else {
        return Ok(());
    };
    let mut left = 0;
    for file in fs::read_dir(dir)?.flatten() {
        let (path, name) = (file.path(), file.file_name());
        if name == LOCK_NAME {
            continue;
        }
        let is_temp = name.to_string_lossy().starts_with(TEMP_PREFIX);
        let gone = Instant::now() < deadline
            && if is_temp { is_abandoned(&path) } else { is_expired(&path) };
        if !gone || fs::remove_file(&path).is_err() {
            left += 1;
        }
    }
    if left == 0 && remove_empty {
        // A process that waits for this lock finds it gone, and starts over.
        fs::remove_file(dir.join(LOCK_NAME))?;
        fs::remove_dir(dir)?;
    }
    Ok(())
}

fn is_abandoned(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|m| m.modified());
    modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED))
}

/// Whether it is one of our entries, and has expired.
fn is_expired(path: &Path) -> bool {
    let mut head = [0; ExpiryLine::LEN + MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok()
        && ExpiryLine::split(&head)
            .is_some_and(|(expires_ms, rest)| rest == MAGIC.as_bytes() && expires_ms <= now_ms())
}
