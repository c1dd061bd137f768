//! Memory that two processes share without trusting each other: a sealed memory file, mapped.

use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bowline_nic::Buffer;
use bowline_wire::LiveBytes;

use super::check;

const NAME: &CStr = c"bowline-ring";
/// A process that has the file can neither shrink it, which would make reads fault, nor grow it.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// What is left of the memory that this process maps page by page as soon as it opens it: 1 GiB in
/// all, which takes some 50 ms. A peer may have any number of files.
static AHEAD: Budget = Budget(AtomicUsize::new(1 << 30));
/// Most runs of pages without a hole that are looked for: the file is another process's.
const MAX_PRESENT_RUNS: usize = 1024;

/// Bytes that several threads take from and give back to.
struct Budget(AtomicUsize);

impl Budget {
    /// Takes at most this many; returns how many.
    fn take(&self, most: usize) -> usize {
        let rest = |left: usize| Some(left.saturating_sub(most));
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        left.unwrap_or_default().min(most)
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A memory file of a fixed length, mapped for reading and writing.
///
/// Its words are atomics and its bytes can only be copied, since another process may write both at
/// any time.
pub(crate) struct SharedArea {
    start: NonNull<u8>,
    len: usize,
    /// Until it has been passed on.
    file: Option<OwnedFd>,
    /// Bytes of [`AHEAD`].
    ahead: usize,
}

// SAFETY: the mapping is not tied to a thread; all access is atomic or by copies that tolerate
// other writers.
unsafe impl Send for SharedArea {}
// SAFETY: as above.
unsafe impl Sync for SharedArea {}

impl SharedArea {
    /// A new file of `len` bytes, all zero, that nobody can resize.
    pub(crate) fn create(len: usize) -> io::Result<SharedArea> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: passes the address of a string that ends in a zero.
        let fd = check(unsafe { libc::memfd_create(NAME.as_ptr(), flags) })?;
        // SAFETY: `fd` was just opened and nobody else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: touches no memory of ours.
        check(unsafe { libc::ftruncate(fd, len as libc::off_t) })?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) })?;
        SharedArea::map(file, len)
    }

    /// Maps another process's file, if it cannot be pulled away: it must be sealed, of exactly
    /// `len` bytes, and ordinary memory. Huge pages would fault where none are left.
    pub(crate) fn open(file: OwnedFd, len: usize) -> io::Result<SharedArea> {
        let fd = file.as_raw_fd();
        // SAFETY: touches no memory of ours; fails for anything but a memory file.
        let seals = check(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) })?;
        // SAFETY: plain C structs for which zeros are valid.
        let (mut stat, mut system): (libc::stat, libc::statfs) = unsafe { (zeroed(), zeroed()) };
        // SAFETY: both are live.
        check(unsafe { libc::fstat(fd, &raw mut stat) })?;
        // SAFETY: as above.
        check(unsafe { libc::fstatfs(fd, &raw mut system) })?;
        let resizable = seals & (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
            != libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        let is_ordinary = system.f_type == libc::TMPFS_MAGIC as _; // its type is the C library's
        if resizable || !is_ordinary || usize::try_from(stat.st_size) != Ok(len) {
            let why = "not a sealed memory file of the announced length";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut area = SharedArea::map(file, len)?;
        let room = AHEAD.take(len);
        area.ahead = area.map_present(room);
        AHEAD.give_back(room - area.ahead);
        Ok(area)
    }

    /// Maps the pages that the file has at present, at most `room` bytes, if the kernel can;
    /// returns how many bytes. One by one, whenever one is first touched, this takes eight times as
    /// long.
    fn map_present(&self, room: usize) -> usize {
        let Some(file) = &self.file else { return 0 };
        let seek = |from: usize, whence| {
            // SAFETY: touches no memory of ours. The position in the file is used nowhere else.
            let at = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, whence) };
            usize::try_from(at).ok().filter(|at| *at < self.len)
        };
        let (mut from, mut mapped) = (0, 0);
        for _ in 0..MAX_PRESENT_RUNS {
            let Some(start) = seek(from, libc::SEEK_DATA) else { break };
            from = seek(start, libc::SEEK_HOLE).unwrap_or(self.len);
            let len = from.saturating_sub(start).min(room - mapped);
            let at = self.start.as_ptr().wrapping_add(start).cast();
            // SAFETY: within the mapping, whose contents this does not change.
            let done = unsafe { libc::madvise(at, len, libc::MADV_POPULATE_READ) };
            if len == 0 || done != 0 {
                break;
            }
            mapped += len;
        }
        mapped
    }

    fn map(file: OwnedFd, len: usize) -> io::Result<SharedArea> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that is as long.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Otherwise a forked child would keep the ring of a dead process alive. Where the kernel
        // lacks this, it does.
        // SAFETY: the mapping that was just made; the parent's is not changed.
        let _ = unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedArea { start, len, file: Some(file), ahead: 0 })
    }

    /// The file, to be passed on.
    ///
    /// # Panics
    /// After [`close_file`](Self::close_file).
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("the file has not been closed").as_fd()
    }

    /// Closes the file, which the mapping does not need: a program has few descriptors.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// The word at a byte offset, a multiple of eight.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "word at {at} of {}", self.len);
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; the file
        // cannot be made shorter, and all access to words is atomic.
        unsafe { self.start.add(at).cast().as_ref() }
    }

    /// Appends a copy of `len` bytes from `at` on to `out`.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn append_to(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        out.reserve(len);
        let copied = self.live(at, len).copy_to(out.spare_capacity_mut()).len();
        // SAFETY: there is room for so many, and they have just been written.
        unsafe { out.set_len(out.len() + copied) };
    }

    /// A copy of `N` bytes from `at` on.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut room = [MaybeUninit::uninit(); N];
        let copied = self.live(at, N).copy_to(&mut room);
        copied.try_into().expect("as many bytes were copied")
    }

    #[inline]
    fn live(&self, at: usize, len: usize) -> LiveBytes<'_> {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        // SAFETY: within the mapping, which lives as long as `self` and cannot be made shorter.
        unsafe { LiveBytes::new(self.start.as_ptr().wrapping_add(at), len) }
    }

    /// A part of the memory as a buffer, which keeps all of it mapped.
    ///
    /// # Panics
    /// If it is not all there.
    pub(crate) fn buffer(self: &Arc<SharedArea>, at: usize, len: usize) -> Option<Arc<Buffer>> {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        let start = self.start.as_ptr().wrapping_add(at);
        // SAFETY: within the mapping, which the clone keeps and nobody can make shorter; it is
        // writable, and no reference to its bytes is ever made.
        unsafe { Buffer::foreign(start, len, Box::new(Arc::clone(self))) }
    }

    /// Copies bytes to `at`.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let len = bytes.len();
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        // SAFETY: within the mapping. The other process may read or write the bytes meanwhile; no
        // reference to them exists in this one.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), len) };
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        AHEAD.give_back(self.ahead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: usize = 4096;

    #[test]
    fn no_more_is_taken_than_is_left() {
        let budget = Budget(AtomicUsize::new(10));
        assert_eq!([budget.take(6), budget.take(6), budget.take(6)], [6, 4, 0]);
        budget.give_back(5);
        assert_eq!([budget.take(3), budget.take(usize::MAX)], [3, 2]);
    }

    /// Pages that this thread has waited for.
    fn faults() -> i64 {
        // SAFETY: a plain C struct for which zeros are valid.
        let mut usage: libc::rusage = unsafe { zeroed() };
        // SAFETY: it is live.
        check(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }).unwrap();
        usage.ru_minflt
    }

    #[test]
    fn pages_that_are_there_are_mapped_at_once_and_no_others_are_made() {
        const PAGES: usize = 512;
        let ours = SharedArea::create(4 * PAGES * PAGE_BYTES).unwrap();
        // The second and the last quarter.
        let there = (PAGES..2 * PAGES).chain(3 * PAGES..4 * PAGES);
        there.clone().for_each(|page| ours.write(page * PAGE_BYTES, &[7]));
        let theirs = SharedArea::map(ours.file().try_clone_to_owned().unwrap(), ours.len).unwrap();
        let mapped = theirs.map_present(3 * PAGES * PAGE_BYTES);
        if mapped == 0 {
            eprintln!("SKIPPED: this kernel cannot map pages in advance (Linux 5.14 can)");
            return;
        }
        assert_eq!(mapped, 2 * PAGES * PAGE_BYTES);
        let before = faults();
        there.for_each(|page| theirs.write(page * PAGE_BYTES + 1, &[8]));
        let waited = faults() - before;
        assert!(waited < PAGES as i64 / 8, "{waited} faults");
        // SAFETY: a plain C struct for which zeros are valid.
        let mut stat: libc::stat = unsafe { zeroed() };
        // SAFETY: it is live.
        check(unsafe { libc::fstat(ours.file().as_raw_fd(), &raw mut stat) }).unwrap();
        assert_eq!(stat.st_blocks as usize * 512, 2 * PAGES * PAGE_BYTES, "holes stay holes");
    }
}
