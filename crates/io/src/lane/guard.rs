//! Exclusive use of the engine.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use super::engine::Engine;
use crate::sys::EventFd;

/// Exclusive use of the engine. A panic while it is held wakes the lane's thread, which then finds
/// the lock poisoned and ends the lane for all users.
pub(super) struct EngineGuard<'a> {
    engine: MutexGuard<'a, Engine>,
    wake: &'a EventFd,
}

impl<'a> EngineGuard<'a> {
    pub(super) fn new(engine: MutexGuard<'a, Engine>, wake: &'a EventFd) -> EngineGuard<'a> {
        EngineGuard { engine, wake }
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for EngineGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.wake.raise();
        }
    }
}
