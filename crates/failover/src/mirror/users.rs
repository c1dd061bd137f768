//! Counts how many objects use another, across all engines.

use std::sync::atomic::{AtomicU32, Ordering};

use bowline_nic::ControlError;

/// The object is being destroyed and accepts no more users.
const ENDED: u32 = u32::MAX;

/// Counts the users of an object that spans engines. Each engine counts its own, but an object must
/// not be destroyed on some engines while others still use it.
#[derive(Debug, Default)]
pub(super) struct Users(AtomicU32);

impl Users {
    /// Adds a user.
    pub(super) fn hold(&self, what: &'static str) -> Result<(), ControlError> {
        let more = |users| (users < ENDED - 1).then_some(users + 1);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map(drop)
            .map_err(|_| ControlError::NotFound { what })
    }

    /// Removes a user.
    pub(super) fn release(&self) {
        let less = |users: u32| (users != ENDED).then_some(users.saturating_sub(1));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Closes the object to new users, unless it has users.
    pub(super) fn end(&self, what: &'static str) -> Result<(), ControlError> {
        self.0.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Acquire).map(drop).map_err(
            |users| match users {
                ENDED => ControlError::NotFound { what },
                _ => ControlError::Busy { what },
            },
        )
    }
}
