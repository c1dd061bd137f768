//! What a receiver and those who send to it count, in words that all of them share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

/// The words of one receiver.
pub(super) struct Counts<'a, W = AtomicU64> {
    /// What others have sent, or are about to.
    pub(super) sent: &'a W,
    /// What the receiver has taken.
    pub(super) taken: &'a W,
    /// What its socket holds; zero if it is not to be waited for.
    pub(super) limit: &'a W,
}

impl<W: Word> Counts<'_, W> {
    /// From now on others wait for the receiver, whose socket takes so much.
    pub(super) fn open(&self, limit: u64) {
        self.drained(self.sent());
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Nobody has to wait for the receiver any more.
    pub(super) fn close(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    /// Whether there is a receiver that can be waited for.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// What others have sent so far: to be read before receiving.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// What the receiver has taken so far.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// The receiver took something.
    ///
    /// Nobody else writes this word. An atomic addition would wait until everything that was
    /// streamed past the caches for the datagram before has arrived in memory.
    #[inline]
    pub(super) fn took(&self, cost: u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(cost), Ordering::Release);
    }

    /// The receiver found its socket empty after `sent` had been read: all of that has been taken,
    /// or lost.
    #[inline]
    pub(super) fn drained(&self, sent: u64) {
        if self.taken.load(Ordering::Relaxed) != sent {
            self.taken.store(sent, Ordering::Release);
        }
    }

    /// Whether there is room for so much, when the receiver has taken `taken`. An empty socket
    /// takes anything.
    #[inline]
    pub(super) fn has_room(&self, taken: u64, cost: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let backlog = self.sent().wrapping_sub(taken).cast_signed().max(0);
        backlog == 0 || backlog.unsigned_abs() + cost <= limit || limit == 0
    }

    /// Takes room, before something is sent.
    #[inline]
    pub(super) fn take(&self, cost: u64) {
        self.sent.fetch_add(cost, Ordering::AcqRel);
    }

    /// Gives room back: it was not sent after all.
    pub(super) fn give_back(&self, cost: u64) {
        self.sent.fetch_sub(cost, Ordering::Release);
    }
}
