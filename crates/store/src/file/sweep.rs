//! Removing what nobody wants any more.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use super::lock::{self, LOCK_NAME};
use super::{ExpiryLine, TEMP_PREFIX, now_ms};
use crate::PATIENCE;
use crate::entry::MAGIC;

/// A file that was begun this long ago will not be finished.
const ABANDONED: Duration = Duration::from_secs(60);

/// Removes expired entries and files that were never finished, of all jobs below `base`, and
/// directories that are empty then, except `keep`. Whatever does not work now is left to the next
/// time, and it stops after a while.
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
        // Only where a store has been: the directory may be one that is used for other things too.
        if job.file_type().is_ok_and(|t| t.is_dir()) && dir.join(LOCK_NAME).exists() {
            let _ = sweep_job(&dir, dir != keep, deadline);
        }
    }
}

fn sweep_job(dir: &Path, remove_empty: bool, deadline: Instant) -> io::Result<()> {
    // Under the lock: an entry that is refreshed now must not be removed as expired.
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
        // Whoever waits for this lock finds it gone, and starts over.
        fs::remove_file(dir.join(LOCK_NAME))?;
        fs::remove_dir(dir)?;
    }
    Ok(())
}

fn is_abandoned(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|m| m.modified());
    modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED))
}

/// Whether it is an entry of ours, and has expired.
fn is_expired(path: &Path) -> bool {
    let mut head = [0; ExpiryLine::LEN + MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok()
        && ExpiryLine::split(&head)
            .is_some_and(|(expires_ms, rest)| rest == MAGIC.as_bytes() && expires_ms <= now_ms())
}
