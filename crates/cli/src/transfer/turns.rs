//! A number of turns that threads take and give back.

use std::sync::{Condvar, Mutex, PoisonError};

/// So many may go on at a time.
pub(super) struct Turns {
    count: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

/// A turn, given back when it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(super) fn new(count: usize) -> Turns {
        Turns { count, free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Whether nobody has one.
    pub(super) fn are_all_free(&self) -> bool {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) == self.count
    }

    /// Waits for a turn.
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
