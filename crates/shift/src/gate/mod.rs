//! The lock of the data path. Taking it also identifies its object, so that one atomic instruction
//! both finds an object and locks it.
//!
//! The word of a gate holds the address of its object while the gate is free, and another address
//! while a thread is inside. The data path enters by exchanging the one for the other
//! ([`Gate::enter`]), and stores the value of `free` when it leaves. All others use [`Gate::lock`].
//! If `free` has [`SLOW`] set, the data path finds an unexpected address and does not enter: either
//! there is more to do than usual, or another thread waits.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Spins before a waiter yields the core.
const SPINS: u32 = 100;

/// Maximum number of yields to threads that wait.
const MAX_YIELDS: u32 = 200;

/// Keeps the data path out. Providers' objects have even addresses.
const SLOW: usize = 2;

/// For a destroyed object: the address of no object.
const RETIRED: usize = 4;

/// A lock without contents: the data it protects is stored beside it.
#[repr(C)]
pub(crate) struct Gate {
    word: AtomicUsize,
    /// The value of the word when the gate is left.
    free: AtomicUsize,
    object: AtomicUsize,
    waiters: AtomicU32,
    /// Written only inside the gate.
    slow: AtomicBool,
}

/// Leaves the gate when dropped.
pub(crate) struct GateGuard<'a>(&'a Gate);

impl Gate {
    pub(crate) const fn new() -> Gate {
        Gate {
            word: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            object: AtomicUsize::new(0),
            waiters: AtomicU32::new(0),
            slow: AtomicBool::new(false),
        }
    }

    /// Enters if the gate belongs to this object and is free and not slow. `mark` is any address
    /// that is not an object's; [`Gate::mark`] returns it until the gate is left.
    #[inline(always)]
    pub(crate) fn enter(&self, object: usize, mark: usize) -> bool {
        self.word.compare_exchange(object, mark, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    pub(crate) fn mark(&self) -> usize {
        self.word.load(Ordering::Relaxed)
    }

    /// Leaves after [`Gate::enter`].
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.word.store(self.free.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Turns an [`Gate::enter`] into a lock guard, instead of [`Gate::leave`].
    pub(crate) fn adopt(&self) -> GateGuard<'_> {
        GateGuard(self)
    }

    pub(crate) fn lock(&self) -> GateGuard<'_> {
        if !self.take() {
            self.wait();
        }
        GateGuard(self)
    }

    fn take(&self) -> bool {
        let now = self.word.load(Ordering::Relaxed);
        let is_free = now & !SLOW == self.object.load(Ordering::Relaxed);
        is_free && self.enter(now, core::ptr::from_ref(self) as usize)
    }

    #[cold]
    fn wait(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut turns = 0;
        while !self.take() {
            // A thread that came in by `enter` does not know about waiters, and stores this value
            // when it leaves.
            self.free.store(self.object.load(Ordering::Relaxed) | SLOW, Ordering::Relaxed);
            turns += 1;
            if turns < SPINS { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets others have the gate first, for a thread that takes it repeatedly.
    pub(crate) fn give_way(&self) {
        for _ in 0..MAX_YIELDS {
            if self.waiters.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Whether the gate belongs to this object.
    pub(crate) fn is_of(&self, object: usize) -> bool {
        self.object.load(Ordering::Relaxed) == object
    }
}

impl GateGuard<'_> {
    /// Assigns the gate to an object.
    pub(crate) fn open(&self, object: usize) {
        self.0.object.store(object, Ordering::Relaxed);
    }

    /// Its object is destroyed. Another one may be created at the same address.
    pub(crate) fn retire(&self) {
        self.0.object.store(RETIRED, Ordering::Relaxed);
    }

    /// Whether to keep the data path out from now on.
    pub(crate) fn set_slow(&self, slow: bool) {
        self.0.slow.store(slow, Ordering::Relaxed);
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        let gate = self.0;
        let object = gate.object.load(Ordering::Relaxed);
        let slow = gate.slow.load(Ordering::Relaxed) || gate.waiters.load(Ordering::Relaxed) != 0;
        let free = if slow { object | SLOW } else { object };
        gate.free.store(free, Ordering::Relaxed);
        gate.word.store(free, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
