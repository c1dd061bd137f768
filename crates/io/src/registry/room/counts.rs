//! The counters that a receiver shares with its senders.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

/// The counters of one receiver.
pub(super) struct Counts<'a, W = AtomicU64> {
    /// What others have sent, or are about to send.
    pub(super) sent: &'a W,
    /// What the receiver has consumed.
    pub(super) taken: &'a W,
    /// What its socket holds; zero if senders need not wait for it.
    pub(super) limit: &'a W,
}

impl<W: Word> Counts<'_, W> {
    /// From now on senders wait for the receiver, whose socket holds `limit`.
    pub(super) fn open(&self, limit: u64) {
        self.drained(self.sent());
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Senders no longer wait for the receiver.
    pub(super) fn close(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    /// Whether there is a receiver to wait for.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// What others have sent so far; read it before receiving.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// What the receiver has consumed so far.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// The receiver consumed something.
    ///
    /// Only the receiver writes this word. An atomic addition would wait until all non-temporal
    /// stores of the previous datagram have reached memory.
    #[inline]
    pub(super) fn took(&self, cost: u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(cost), Ordering::Release);
    }

    /// The receiver found its socket empty after it had read `sent`: all of that was consumed or
    /// lost.
    #[inline]
    pub(super) fn drained(&self, sent: u64) {
        if self.taken.load(Ordering::Relaxed) != sent {
            self.taken.store(sent, Ordering::Release);
        }
    }

    /// Whether `cost` fits, when the receiver has consumed `taken`. An empty socket takes anything.
    #[inline]
    pub(super) fn has_room(&self, taken: u64, cost: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let backlog = self.sent().wrapping_sub(taken).cast_signed().max(0);
        backlog == 0 || backlog.unsigned_abs() + cost <= limit || limit == 0
    }

    /// Reserves space before sending.
    #[inline]
    pub(super) fn take(&self, cost: u64) {
        self.sent.fetch_add(cost, Ordering::AcqRel);
    }

    /// Returns reserved space: nothing was sent after all.
    pub(super) fn give_back(&self, cost: u64) {
        self.sent.fetch_sub(cost, Ordering::Release);
    }
}
