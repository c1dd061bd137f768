//! One of the four rings that an AF_XDP socket shares with the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// A ring of `T`, of which we are the producer or the consumer.
///
/// Indices are free-running and wrap around. The kernel's index is trusted only for the number of
/// entries, capped at the ring's size.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    map_len: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    len: u32,
    /// Our index.
    own: u32,
}

// SAFETY: the mapping lives as long as the ring, and nothing in it depends on a thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `len` entries, a power of two, that `socket` has at `page_offset`.
    ///
    /// # Safety
    /// `offsets` must be the kernel's for this ring, and `T` the type of its entries.
    pub(super) unsafe fn map(
        socket: BorrowedFd<'_>,
        page_offset: i64,
        offsets: &libc::xdp_ring_offset,
        len: u32,
    ) -> io::Result<Ring<T>> {
        let map_len = offsets.desc as usize + len as usize * size_of::<T>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(ptr::null_mut(), map_len, access, flags, socket.as_raw_fd(), page_offset)
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map: NonNull<u8> = NonNull::new(map.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: by the caller's word these are where the kernel has put the ring's parts, within
        // the mapping and aligned.
        let at = |offset: u64| unsafe { map.add(offset as usize) };
        Ok(Ring {
            map,
            map_len,
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(offsets.flags).cast(),
            entries: at(offsets.desc).cast(),
            len,
            own: 0,
        })
    }

    fn word(word: &NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: within the mapping, which lives as long as the ring that `word` is borrowed from.
        unsafe { word.as_ref() }
    }

    /// Whether the kernel needs a system call before it processes the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        Self::word(&self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps it among the ring's entries, all of them in the mapping.
        unsafe { self.entries.add((index & (self.len - 1)) as usize) }
    }

    /// As the producer: how many entries the kernel has not consumed yet.
    pub(super) fn untaken(&self) -> u32 {
        let consumer = Self::word(&self.consumer).load(Ordering::Acquire);
        self.own.wrapping_sub(consumer).min(self.len)
    }

    /// As the producer: adds an entry, which the kernel sees after [`Ring::publish`]; `false` if
    /// the ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.untaken() == self.len {
            return false;
        }
        // SAFETY: the place is in the mapping, and the kernel does not look at it before `publish`.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// As the producer: shows the kernel what was pushed.
    pub(super) fn publish(&self) {
        Self::word(&self.producer).store(self.own, Ordering::Release);
    }

    /// As the consumer: takes the next entry, if there is one.
    pub(super) fn pop(&mut self) -> Option<T> {
        let producer = Self::word(&self.producer).load(Ordering::Acquire);
        if producer == self.own {
            return None;
        }
        // SAFETY: the place is in the mapping; the kernel has written it before it moved its index,
        // and leaves it alone until `release`. Any bytes are a valid entry: they are plain
        // integers.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// As the consumer: returns the consumed entries to the kernel.
    pub(super) fn release(&self) {
        Self::word(&self.consumer).store(self.own, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference is left.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
