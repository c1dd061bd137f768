//! The lock of the data path. Taking it also shows whose it is, so that one atomic instruction
//! finds an object and locks it.
//!
//! The word of a gate is the address of its object while the gate is free, and another address
//! while somebody is inside. The data path enters by exchanging one for the other
//! ([`Gate::enter`]), and gives back what `free` says. Everybody else takes [`Gate::lock`].
//! With [`SLOW`] in `free` the data path finds an address that it does not expect, and keeps out:
//! because there is more to do than usual, or because somebody waits.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Turns before a waiter lets others have the core.
const SPINS: u32 = 100;

/// Turns that a thread gives way to those that wait.
const MAX_YIELDS: u32 = 200;

/// Not for the data path. Objects of providers are at even addresses.
const SLOW: usize = 2;

/// Of an object that was destroyed: the address of none.
const RETIRED: usize = 4;

/// A lock without contents: what it guards is beside it.
#[repr(C)]
pub(crate) struct Gate {
    word: AtomicUsize,
    /// What the word becomes when the gate is given back.
    free: AtomicUsize,
    object: AtomicUsize,
    waiters: AtomicU32,
    /// Written by who is inside.
    slow: AtomicBool,
}

/// Gives the gate back when dropped.
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

    /// Enters if the gate is this object's, free, and not slow. `mark` is an address of anything
    /// but an object, which is found by [`Gate::mark`] until the gate is left.
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

    /// Goes on as who has locked it, after [`Gate::enter`] and instead of [`Gate::leave`].
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
            // Who is inside by `enter` does not know of waiters, and gives back what is here.
            self.free.store(self.object.load(Ordering::Relaxed) | SLOW, Ordering::Relaxed);
            turns += 1;
            if turns < SPINS { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets others have the gate first: for a thread that takes it again and again.
    pub(crate) fn give_way(&self) {
        for _ in 0..MAX_YIELDS {
            if self.waiters.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Whether it is this object's.
    pub(crate) fn is_of(&self, object: usize) -> bool {
        self.object.load(Ordering::Relaxed) == object
    }
}

impl GateGuard<'_> {
    /// Makes it the gate of an object.
    pub(crate) fn open(&self, object: usize) {
        self.0.object.store(object, Ordering::Relaxed);
    }

    /// Its object is destroyed. Another one may come to be at the same address.
    pub(crate) fn retire(&self) {
        self.0.object.store(RETIRED, Ordering::Relaxed);
    }

    /// Whether the data path keeps out from now on.
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
