//! How many objects use another, across all engines.

use std::sync::atomic::{AtomicU32, Ordering};

use bowline_nic::ControlError;

/// No more users: the object is being destroyed.
const ENDED: u32 = u32::MAX;

/// Counts the users of an object that spans engines. Each engine counts its own, but an object must
/// not be destroyed on some engines while it is in use on others.
#[derive(Debug, Default)]
pub(super) struct Users(AtomicU32);

impl Users {
    /// Counts one more.
    pub(super) fn hold(&self, what: &'static str) -> Result<(), ControlError> {
        let more = |users| (users < ENDED - 1).then_some(users + 1);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map(drop)
            .map_err(|_| ControlError::NotFound { what })
    }

    /// Counts one less.
    pub(super) fn release(&self) {
        let less = |users: u32| (users != ENDED).then_some(users.saturating_sub(1));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Lets nobody use it any more, unless somebody does.
    pub(super) fn end(&self, what: &'static str) -> Result<(), ControlError> {
        self.0.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Acquire).map(drop).map_err(
            |users| match users {
                ENDED => ControlError::NotFound { what },
                _ => ControlError::Busy { what },
            },
        )
    }
}
