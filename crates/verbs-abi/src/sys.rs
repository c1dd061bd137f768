//! The few system calls of this crate.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::errno::Errno;

/// A descriptor that is readable while a counting event descriptor is not zero, and never writable.
///
/// Programs get this one. An event descriptor is always writable, and those of the kernel's verbs
/// never are: an event loop that also watches for writability would spin.
#[derive(Debug)]
pub(crate) struct Watch {
    shown: OwnedFd,
    counter: RawFd,
}

impl Watch {
    /// Watches `counter`, which must live as long.
    pub(crate) fn over(counter: RawFd) -> Result<Watch, Errno> {
        // SAFETY: touches no memory of ours.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: just opened, and nobody else's.
        let shown = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: reads one live event.
        if unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, counter, &raw mut event) } < 0 {
            return Err(Errno::last());
        }
        set_blocking(counter)?;
        Ok(Watch { shown, counter })
    }

    /// Waits until it is readable, exactly as a read would: blocking or not, interrupted by signals
    /// or restarted after them.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        // SAFETY: F_GETFL touches no memory.
        let flags = unsafe { libc::fcntl(self.as_raw_fd(), libc::F_GETFL) };
        if flags >= 0 && flags & libc::O_NONBLOCK != 0 {
            return Err(Errno(libc::EAGAIN));
        }
        wait_counted(self.counter)
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.shown.as_raw_fd()
    }
}

/// Clears `O_NONBLOCK`.
fn set_blocking(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: F_GETFL touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: F_SETFL takes a number.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) } < 0 {
        return Err(Errno::last());
    }
    Ok(())
}

/// Waits until a counting event descriptor is not zero.
fn wait_counted(fd: RawFd) -> Result<(), Errno> {
    let mut one = 0_u64;
    // SAFETY: reads 8 bytes into a live `u64`.
    if unsafe { libc::read(fd, (&raw mut one).cast(), 8) } != 8 {
        return Err(Errno::last());
    }
    // SAFETY: writes 8 bytes from a live `u64`: what was taken is given back for whoever gets the
    // event itself.
    let _ = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    Ok(())
}

/// An anonymous file.
pub(crate) fn anonymous_file() -> Result<OwnedFd, Errno> {
    // SAFETY: reads a string constant.
    let fd = unsafe { libc::memfd_create(c"bowline-device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A flag shared with forked processes; `None` without memory for it.
pub(crate) fn shared_flag() -> Option<&'static AtomicBool> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: maps fresh memory, which is never unmapped.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), 1, access, kind, -1, 0) };
    // SAFETY: a page of zeros, which is a flag that is not set.
    (at != libc::MAP_FAILED).then(|| unsafe { &*at.cast::<AtomicBool>() })
}

/// The identity of a descriptor's file: the same for duplicates, and unique while it is open.
pub(crate) fn file_id(fd: RawFd) -> Result<(u64, u64), Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes one `stat`.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(Errno::last());
    }
    // SAFETY: filled in just now.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// Number of configured processors.
pub(crate) fn processors() -> u32 {
    // SAFETY: touches no memory.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(count).unwrap_or(1)
}

/// Checks that memory is mapped with the requested access, and faults its pages in, as a NIC that
/// pins them would.
pub(crate) fn check_mapped(addr: usize, len: usize, write: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let page = page_size();
    let (start, span) = whole_pages(addr, len, page).ok_or(Errno::INVAL)?;
    let populate = |advice| {
        // SAFETY: populating pages changes no byte of them.
        let done = unsafe { libc::madvise(start as *mut _, span, advice) };
        if done == 0 { Ok(()) } else { Err(Errno::last()) }
    };
    if write {
        match populate(libc::MADV_POPULATE_WRITE) {
            Ok(()) => return Ok(()),
            Err(Errno(libc::ENOMEM | libc::EFAULT)) => return Err(Errno::FAULT),
            // The memory may be read-only: then it can be populated for reading.
            Err(_) => {}
        }
    }
    match populate(libc::MADV_POPULATE_READ) {
        Ok(()) if write => Err(Errno::FAULT),
        Ok(()) => Ok(()),
        Err(Errno(libc::ENOMEM | libc::EFAULT)) => Err(Errno::FAULT),
        // Kernels before 5.14 do not know the advice; some memory does not take it.
        Err(_) => check_present(start, span, page),
    }
}

/// How long a page is: 4 KiB on x86, and 4, 16 or 64 KiB elsewhere.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: touches no memory.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

/// Start and length of the pages that memory lies in; `None` beyond the end of the address space.
fn whole_pages(addr: usize, len: usize, page: usize) -> Option<(usize, usize)> {
    let start = addr & !(page - 1);
    let end = addr.checked_add(len)?.checked_add(page - 1)? & !(page - 1);
    Some((start, end - start))
}

/// Makes sure that something is mapped.
fn check_present(start: usize, span: usize, page: usize) -> Result<(), Errno> {
    const PAGES: usize = 4096;
    let step = PAGES * page;
    let mut vector = [0_u8; PAGES];
    for at in (start..start + span).step_by(step) {
        let len = step.min(start + span - at);
        // SAFETY: `mincore` writes one byte a page, of which there are at most `PAGES` here.
        if unsafe { libc::mincore(at as *mut _, len, vector.as_mut_ptr()) } != 0 {
            return Err(Errno::FAULT);
        }
    }
    Ok(())
}

/// A lock that one call takes and another releases, as `ibv_start_poll` and `ibv_end_poll` do.
pub(crate) struct RawLock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is made to be shared.
unsafe impl Send for RawLock {}
// SAFETY: as above.
unsafe impl Sync for RawLock {}

impl RawLock {
    pub(crate) const fn new() -> RawLock {
        RawLock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    /// Takes it. It must not move from now on.
    #[inline]
    pub(crate) fn lock(&self) {
        // SAFETY: an initialized mutex that does not move. A plain mutex's lock cannot fail.
        let _: c_int = unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    /// Releases it; the caller has taken it.
    #[inline]
    pub(crate) fn unlock(&self) {
        // SAFETY: as above.
        let _: c_int = unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_for_whole_pages_of_whatever_size() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for (addr, len) in [(0x1234_5678, 1), (0x1234_0000, 4096), (0x1233_ffff, 200_000)] {
                let (start, span) = whole_pages(addr, len, page).unwrap();
                assert!(start % page == 0 && span % page == 0, "{page} {addr:x}");
                assert!(start <= addr && addr + len <= start + span, "{page} {addr:x}");
                assert!(addr - start < page && start + span - addr - len < page);
            }
        }
        assert_eq!(whole_pages(usize::MAX - 10, 100, 4096), None);
        let memory = vec![0_u8; 100_000];
        assert_eq!(
            check_present(memory.as_ptr() as usize & !(page_size() - 1), 65_536, page_size()),
            Ok(())
        );
    }

    #[test]
    fn memory_is_checked_for_what_it_is_to_be_used_for() {
        let bytes = vec![0_u8; 10_000];
        assert_eq!(check_mapped(bytes.as_ptr() as usize, bytes.len(), true), Ok(()));
        assert_eq!(check_mapped(0x1000, 1, false), Err(Errno::FAULT));
        assert_eq!(check_mapped(usize::MAX - 10, 100, false), Err(Errno::INVAL));
        static READ_ONLY: [u8; 64] = [1; 64];
        let addr = READ_ONLY.as_ptr() as usize;
        assert_eq!(check_mapped(addr, 64, false), Ok(()));
        assert_eq!(check_mapped(addr, 64, true), Err(Errno::FAULT));
    }
}
