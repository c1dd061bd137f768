//! Events that a program received and has to acknowledge before their object can be destroyed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts events delivered and acknowledged.
#[derive(Default)]
pub(crate) struct Acks {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    delivered: u32,
    acknowledged: u32,
}

impl Acks {
    /// An event was delivered to the program.
    pub(crate) fn deliver(&self) {
        let mut counts = self.lock();
        counts.delivered = counts.delivered.wrapping_add(1);
    }

    /// The program acknowledged events; returns how many in total.
    pub(crate) fn acknowledge(&self, events: u32) -> u32 {
        let mut counts = self.lock();
        counts.acknowledged = counts.acknowledged.wrapping_add(events);
        self.changed.notify_all();
        counts.acknowledged
    }

    /// Waits until everything delivered is acknowledged, as destroying the object must. Some
    /// programs acknowledge completions instead of events, and so more than they received.
    pub(crate) fn wait(&self) {
        let mut counts = self.lock();
        while (counts.delivered.wrapping_sub(counts.acknowledged) as i32) > 0 {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_acknowledges_too_much_need_not_wait() {
        let acks = Acks::default();
        acks.deliver();
        assert_eq!(acks.acknowledge(5), 5);
        acks.wait();
    }
}
