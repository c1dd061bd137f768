//! Memory that the NIC and this library share: no reference to it is ever made.

use core::ffi::c_int;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::abi::*;
use crate::errno::Errno;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};

/// Registered bytes.
pub(super) struct Region {
    at: *mut u8,
    layout: Layout,
    mr: *mut ibv_mr,
}

// SAFETY: the memory is the region's own, and whoever has the stream's lock copies to and from it.
unsafe impl Send for Region {}

impl Region {
    /// Zeroed memory, registered in a domain. The peer may write to it if `remote`.
    pub(super) fn new(pd: *mut ibv_pd, len: usize, remote: bool) -> Result<Region, Errno> {
        let layout = Layout::from_size_align(len.max(1), 4096).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the layout has a size.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            return Err(Errno::NOMEM);
        }
        let remote = if remote { IBV_ACCESS_REMOTE_WRITE } else { 0 };
        let access = (IBV_ACCESS_LOCAL_WRITE | remote) as c_int;
        // SAFETY: the domain lives, and so does the memory, until it is deregistered in `drop`.
        let mr = unsafe { ibv_reg_mr(pd, at.cast(), len, access) };
        let region = Region { at, layout, mr };
        if mr.is_null() { Err(Errno::last()) } else { Ok(region) }
    }

    pub(super) fn addr(&self, offset: usize) -> u64 {
        self.at as u64 + offset as u64
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: registered in `new`, and until `drop`.
        unsafe { (*self.mr).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }

    /// Copies into it.
    ///
    /// # Safety
    /// `from` must point to `len` bytes.
    pub(super) unsafe fn write(&self, offset: usize, from: *const u8, len: usize) {
        self.check(offset, len);
        // SAFETY: within the region; the program's bytes by the caller's word. The two do not
        // overlap.
        unsafe { core::ptr::copy_nonoverlapping(from, self.at.add(offset), len) };
    }

    /// Copies out of it.
    ///
    /// # Safety
    /// `to` must point to room for `len` bytes.
    pub(super) unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        self.check(offset, len);
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(self.at.add(offset), to, len) };
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.layout.size()), "a copy within the region");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered and allocated in `new`, each once.
        unsafe {
            if !self.mr.is_null() {
                ibv_dereg_mr(self.mr);
            }
            dealloc(self.at, self.layout);
        }
    }
}
