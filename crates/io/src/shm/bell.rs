//! Lets a writer learn that its reader sleeps.
//!
//! The writer publishes a position, then checks whether the reader sleeps. The reader announces
//! that it sleeps, then checks the position. Each stores one word and loads the other, so both ends
//! put a full fence in between: without it, both loads may complete before either store is visible,
//! and the reader would sleep beside a full ring. With it, at least one of them sees the other's
//! store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

/// The words of one ring that both ends use for this.
pub(super) struct Bell<'a, W = AtomicU64> {
    /// How far the writer has written.
    pub(super) tail: &'a W,
    /// Non-zero while the reader sleeps, or is about to.
    pub(super) asleep: &'a W,
}

impl<W: Word> Bell<'_, W> {
    /// Everything before `tail` may be read: a reader that loads it sees the bytes written before.
    #[inline]
    pub(super) fn publish(&self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }

    /// How far the writer says that it has written. Bytes before that are visible.
    #[inline]
    pub(super) fn published(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Whether the reader has to be woken, after something was published. True once per sleep.
    #[inline]
    pub(super) fn rings(&self) -> bool {
        W::full_fence();
        self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// The reader is about to sleep: from now on it is woken. It has to check again, after this
    /// call, for what was published before.
    pub(super) fn lie_down(&self) {
        self.asleep.store(1, Ordering::Relaxed);
        W::full_fence();
    }

    /// The reader does not sleep after all.
    pub(super) fn get_up(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    /// A reader never sleeps beside published data, unless it is about to be woken.
    #[test]
    fn no_wake_up_is_missed() {
        loom::model(|| {
            let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
            let of_writer = Arc::clone(&words);
            let writer = loom::thread::spawn(move || {
                let bell = Bell { tail: &of_writer.0, asleep: &of_writer.1 };
                bell.publish(1);
                bell.rings()
            });
            let bell = Bell { tail: &words.0, asleep: &words.1 };
            bell.lie_down();
            let sleeps = bell.published() == 0;
            let woken = writer.join().unwrap();
            assert!(!sleeps || woken, "the reader sleeps and nobody wakes it");
        });
    }
}
