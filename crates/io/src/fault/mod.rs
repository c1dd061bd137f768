//! Faults on demand: make a working device fail, to see what happens.
//!
//! [`Faults`] is the handle, shared between the code that requests faults and the port that applies
//! them ([`FaultPort`]). Without faults, a port reads one flag per call.

mod action;
mod plan;
mod port;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::EventFd;
pub use action::{Direction, FaultAction, FaultRequest, ParseFaultError};
use plan::{Effects, Plan};
pub use port::FaultPort;

/// Whether a link carries anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It does, as far as is known.
    Up,
    /// The interface, or a fault on demand, says that it does not.
    Down,
}

/// The faults of one device. Clones are handles to the same.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Whether the plan is non-empty.
    active: AtomicBool,
    plan: Mutex<Plan>,
    /// Raised on every change, to wake a sleeping lane.
    wake: Mutex<Option<Arc<EventFd>>>,
}

impl Faults {
    /// No faults, yet.
    pub fn new() -> Faults {
        Faults::default()
    }

    /// Starts a fault, or ends some, from now on.
    pub fn apply(&self, request: &FaultRequest) {
        let mut plan = self.plan();
        plan.apply(request, Instant::now());
        self.shared.active.store(!plan.is_empty(), Ordering::Release);
        drop(plan);
        if let Some(wake) = &*self.shared.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake.raise();
        }
    }

    /// Whether the link is up at the moment, as far as faults go. Loss and black holes leave it up:
    /// the other end has to find out by waiting.
    pub fn link(&self) -> LinkState {
        let is_down = self.is_active() && self.effects().is_some_and(|effects| effects.down);
        if is_down { LinkState::Down } else { LinkState::Up }
    }

    /// The current faults, each with its remaining time if it ends by itself.
    pub fn list(&self) -> Vec<(FaultAction, Option<Duration>)> {
        self.plan().list(Instant::now())
    }

    /// Whether there are faults, or were until a moment ago.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.shared.active.load(Ordering::Relaxed)
    }

    /// What to do to packets now; `None` for nothing.
    #[cold]
    fn effects(&self) -> Option<Effects> {
        let mut plan = self.plan();
        let now = Instant::now();
        plan.expire(now);
        if plan.is_empty() {
            self.shared.active.store(false, Ordering::Release);
            return None;
        }
        Some(plan.effects(now))
    }

    /// Raises `wake` from now on whenever faults start or end.
    pub(crate) fn wake_on_change(&self, wake: Arc<EventFd>) {
        *self.shared.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // Nothing under this lock can panic, so a poisoned plan is still whole.
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
