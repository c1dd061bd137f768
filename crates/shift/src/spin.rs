//! A lock of a few instructions, for the data path. Who holds one does little, and never sleeps.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Turns before a waiter lets others have the core.
const SPINS: u32 = 100;

/// Turns that a thread gives way to those that wait.
const MAX_YIELDS: u32 = 200;

/// A lock without contents: what it guards is beside it.
#[derive(Default)]
pub(crate) struct Spin {
    taken: AtomicBool,
    waiters: AtomicU32,
}

/// Gives the lock back when dropped.
pub(crate) struct SpinGuard<'a>(&'a Spin);

impl Spin {
    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinGuard<'_> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        SpinGuard(self)
    }

    #[cold]
    fn wait(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut turns = 0;
        while self.taken.swap(true, Ordering::Acquire) {
            while self.taken.load(Ordering::Relaxed) {
                turns += 1;
                if turns < SPINS { core::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets others have the lock first: for a thread that takes it again and again.
    pub(crate) fn give_way(&self) {
        for _ in 0..MAX_YIELDS {
            if self.waiters.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for SpinGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
