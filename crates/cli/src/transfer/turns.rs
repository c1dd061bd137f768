//! A counting semaphore.

use std::sync::{Condvar, Mutex, PoisonError};

/// Lets a limited number of threads proceed at a time.
pub(super) struct Turns {
    count: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

/// A permit, released on drop.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(super) fn new(count: usize) -> Turns {
        Turns { count, free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Whether no permits are held.
    pub(super) fn are_all_free(&self) -> bool {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) == self.count
    }

    /// Waits for a permit.
    pub(super) fn wait(&self) -> Turn<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free =
            self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}
