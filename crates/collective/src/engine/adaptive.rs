//! Timeouts learned from earlier operations of the group.

use std::collections::{BTreeMap, VecDeque};

use crate::Rank;
use crate::timeout::{Estimator, Rule};

/// Maximum number of operation kinds whose times are remembered.
const MAX_KINDS: usize = 1024;
/// Maximum number of past operations that other ranks may still report on, and of reports from one
/// rank about operations that have not started here.
const MAX_LATE: usize = 256;

/// The times reported by all ranks. The n-th time from a rank is for the n-th operation with an
/// adaptive deadline.
#[derive(Debug, Default)]
pub(super) struct Adaptive {
    estimators: BTreeMap<u64, Estimator>,
    /// Number of the first operation in `kinds`.
    first: u64,
    /// The kinds of the latest operations.
    kinds: VecDeque<u64>,
    /// Times of operations that this rank has not started yet.
    early: BTreeMap<(Rank, u64), u64>,
}

impl Adaptive {
    /// Starts an operation of this kind. Returns how long it may take, if that is known.
    pub(super) fn start(&mut self, kind: u64, rule: Rule) -> Option<u64> {
        if self.estimators.len() >= MAX_KINDS && !self.estimators.contains_key(&kind) {
            self.estimators.clear();
        }
        let limit = self.estimators.entry(kind).or_default().next_ns(rule);
        let number = self.first + self.kinds.len() as u64;
        self.kinds.push_back(kind);
        if self.kinds.len() > MAX_LATE {
            self.kinds.pop_front();
            self.first += 1;
        }
        let (now, later): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.early).into_iter().partition(|((_, of), _)| *of == number);
        self.early = later;
        for ((rank, _), ns) in now {
            self.hear(rank, number, ns);
        }
        limit
    }

    /// Takes the time that a rank needed for the operation with this number.
    pub(super) fn hear(&mut self, rank: Rank, number: u64, ns: u64) {
        let Some(index) = number.checked_sub(self.first) else { return };
        match self.kinds.get(index as usize) {
            Some(kind) => {
                if let Some(estimator) = self.estimators.get_mut(kind) {
                    estimator.hear(rank, ns);
                }
            }
            None if index < MAX_LATE as u64 => {
                self.early.insert((rank, number), ns);
            }
            None => {}
        }
    }

    /// The number of the operation that started last.
    pub(super) fn latest(&self) -> u64 {
        (self.first + self.kinds.len() as u64).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_find_their_operation_whoever_is_ahead() {
        let mut adaptive = Adaptive::default();
        // A rank that is ahead reports on two kinds before this rank has started either.
        adaptive.hear(1, 0, 1_000_000);
        adaptive.hear(1, 1, 9_000_000);
        assert_eq!(adaptive.start(7, Rule::Margin), None, "the first of its kind");
        assert_eq!(adaptive.start(8, Rule::Margin), None);
        assert_eq!(adaptive.latest(), 1);
        adaptive.hear(0, 1, 9_000_000);
        assert_eq!(adaptive.start(7, Rule::Margin), Some(1_300_000));
        assert_eq!(adaptive.start(8, Rule::Margin), Some(11_300_000));
        adaptive.hear(1, u64::MAX, 5);
        assert!(adaptive.early.is_empty(), "nobody is that far ahead");
    }
}
