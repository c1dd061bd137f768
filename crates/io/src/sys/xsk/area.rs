//! The memory for frames exchanged with the kernel (UMEM).

use std::io;
use std::ptr::{self, NonNull};

/// Bytes of a chunk: the most that the kernel allows, a page.
pub(super) const CHUNK: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Adjacent chunks, each owned by either the kernel or us at any time.
pub(super) struct Area {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that stays mapped until it is dropped.
unsafe impl Send for Area {}

impl Area {
    /// An area of `chunks` chunks, in huge pages where the system has some to spare.
    pub(super) fn new(chunks: u32) -> io::Result<Area> {
        let len = (chunks as usize * CHUNK).next_multiple_of(HUGE_PAGE);
        Area::map(len, libc::MAP_HUGETLB | libc::MAP_POPULATE).or_else(|_| Area::map(len, 0))
    }

    fn map(len: usize, flags: libc::c_int) -> io::Result<Area> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { start, len })
    }

    pub(super) fn addr(&self) -> u64 {
        self.start.addr().get() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of a chunk; `None` unless they lie within one.
    ///
    /// # Safety
    /// The chunk must be ours: the kernel must not write to it while the bytes are borrowed.
    pub(super) unsafe fn bytes(&self, addr: u64, len: u32) -> Option<&[u8]> {
        let (start, len) = self.within(addr, len)?;
        // SAFETY: within the area, which is initialised (it began as zeroes) and lives as long as
        // `self`; by the caller's word nobody writes to it meanwhile.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(start), len) })
    }

    /// The bytes of a chunk, for writing; `None` unless they lie within one.
    ///
    /// # Safety
    /// The chunk must be ours: the kernel must not read it while the bytes are borrowed.
    pub(super) unsafe fn bytes_mut(&mut self, addr: u64, len: u32) -> Option<&mut [u8]> {
        let (start, len) = self.within(addr, len)?;
        // SAFETY: as in `bytes`, and `&mut self` keeps others of ours away.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(start), len) })
    }

    fn within(&self, addr: u64, len: u32) -> Option<(usize, usize)> {
        let (start, len) = (usize::try_from(addr).ok()?, len as usize);
        let in_chunk = start % CHUNK + len <= CHUNK;
        (in_chunk && start.checked_add(len)? <= self.len).then_some((start, len))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference is left. The kernel keeps the pages
        // for as long as a socket may use them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_a_place_can_be_had() {
        let mut area = Area::new(4).unwrap();
        let len = area.len() as u64;
        // SAFETY: no kernel knows of the area.
        let mut have = |addr, bytes| unsafe {
            let read = area.bytes(addr, bytes).map(<[u8]>::len);
            assert_eq!(read, area.bytes_mut(addr, bytes).map(|b| b.len()));
            read
        };
        assert_eq!(have(0, 4096), Some(4096));
        assert_eq!(have(4096 + 256, 3840), Some(3840));
        assert_eq!(have(len - 1, 1), Some(1));
        for (addr, bytes) in [(1, 4096), (4095, 2), (len, 1), (len - 4096, u32::MAX), (u64::MAX, 1)]
        {
            assert_eq!(have(addr, bytes), None, "{addr} {bytes}");
        }
    }
}
