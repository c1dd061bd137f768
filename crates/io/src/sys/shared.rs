//! Words that processes share through a mapped file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// A mapped file of words that others map as well.
pub(crate) struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: it is an array of atomics that stays mapped until it is dropped.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Opens a file of `len` words, or creates it, zeroed and private to this user.
    pub(crate) fn create(path: &Path, len: usize) -> io::Result<SharedWords> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        SharedWords::map_file(&file, len)
    }

    /// Words that no other process sees.
    pub(crate) fn private(len: usize) -> io::Result<SharedWords> {
        SharedWords::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, len)
    }

    /// Opens a file of `len` words that another process has created.
    pub(crate) fn open(path: &Path, len: usize) -> io::Result<SharedWords> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < (len * 8) as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        SharedWords::map_file(&file, len)
    }

    fn map_file(file: &File, len: usize) -> io::Result<SharedWords> {
        allocate(file, len * 8)?;
        SharedWords::map(libc::MAP_SHARED, file.as_raw_fd(), len)
    }

    fn map(flags: libc::c_int, fd: RawFd, len: usize) -> io::Result<SharedWords> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; a file is as long as it.
        let start = unsafe { libc::mmap(ptr::null_mut(), len * 8, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, len })
    }

    /// The word at `index`.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "word {index} of {}", self.len);
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; the file
        // is private to this user and never made shorter, and all access to it is atomic.
        unsafe { self.start.add(index).as_ref() }
    }
}

/// Makes sure that a file has `len` bytes, all of them allocated. It is never shrunk, since
/// processes that map it would fault. Writing to a hole would fault as well if the file system is
/// full.
fn allocate(file: &File, len: usize) -> io::Result<()> {
    loop {
        // SAFETY: touches no memory of this process.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as libc::off_t) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * 8) };
    }
}
