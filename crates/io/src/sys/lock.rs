//! Locks on single bytes of a file that belong to an open file, not to a process.
//!
//! The kernel releases such a lock when the last descriptor of the open file is closed, be it by
//! exit or by SIGKILL, so a held lock proves that its owner lives. Descriptors inherited over
//! `fork` keep it, exactly as they keep a socket.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::check;

/// Takes the lock on byte `at`, if nobody else has it.
pub(crate) fn try_lock_byte(file: &File, at: u64) -> io::Result<bool> {
    match fcntl(file, libc::F_OFD_SETLK, libc::F_WRLCK, at) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Releases the lock on byte `at`.
pub(crate) fn unlock_byte(file: &File, at: u64) -> io::Result<()> {
    fcntl(file, libc::F_OFD_SETLK, libc::F_UNLCK, at).map(drop)
}

/// Whether somebody else has the lock on byte `at`.
pub(crate) fn is_byte_locked(file: &File, at: u64) -> io::Result<bool> {
    let found = fcntl(file, libc::F_OFD_GETLK, libc::F_WRLCK, at)?;
    Ok(found.l_type != libc::F_UNLCK as libc::c_short)
}

fn fcntl(file: &File, command: libc::c_int, kind: libc::c_int, at: u64) -> io::Result<libc::flock> {
    // SAFETY: `flock` is a plain C struct for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at as libc::off_t;
    lock.l_len = 1;
    // SAFETY: the commands used here read and write a live `flock`.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok(lock)
}
