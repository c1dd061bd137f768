//! The entries of a ring, which a cursor points into.

use core::ops::{Index, IndexMut};
use core::ptr::NonNull;

/// Like a boxed slice, but entries are also written through pointers.
pub(super) struct Storage<T> {
    first: NonNull<T>,
    len: usize,
}

impl<T: Default + Clone> Storage<T> {
    pub(super) fn new(len: usize) -> Storage<T> {
        let whole = Box::leak(vec![T::default(); len].into_boxed_slice());
        Storage { len, first: NonNull::from(whole).cast() }
    }
}

impl<T> Storage<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn at(&self, place: usize) -> *mut T {
        assert!(place < self.len);
        // SAFETY: it is within the allocation.
        unsafe { self.first.add(place).as_ptr() }
    }

    /// The index of the request posted `back` requests before the one that goes to `place` next.
    pub(super) fn back(&self, place: usize, back: u64) -> usize {
        (place + self.len - back as usize % self.len) % self.len
    }
}

impl<T> Index<usize> for Storage<T> {
    type Output = T;

    fn index(&self, place: usize) -> &T {
        // SAFETY: it is within the allocation; writing through a cursor requires the queue pair's
        // lock.
        unsafe { &*self.at(place) }
    }
}

impl<T> IndexMut<usize> for Storage<T> {
    fn index_mut(&mut self, place: usize) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.at(place) }
    }
}

impl<T> Drop for Storage<T> {
    fn drop(&mut self) {
        let whole = core::ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.len);
        // SAFETY: it was allocated as such a box, and is dropped once.
        drop(unsafe { Box::from_raw(whole) });
    }
}
