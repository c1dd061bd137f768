//! Deadlines of QPs, and of the requests of a QP: an indexed heap with at most one entry for each.

use crate::time::Time;

/// Position of an item that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// A priority queue of (deadline, item) with items numbered from 0, each in it at most once, so
/// its size is bounded by the number of items whatever the traffic does.
///
/// Retransmission deadlines move later with every acknowledgement. Owners do not update the heap
/// for that: they let the old entry expire and set the new deadline then.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Time, u32)>,
    /// By item.
    position: Vec<u32>,
}

impl Timers {
    /// The earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// The item's deadline, if it has one.
    #[inline]
    pub(crate) fn deadline(&self, item: u32) -> Option<Time> {
        match self.position.get(item as usize) {
            Some(&at) if at != ABSENT => Some(self.heap[at as usize].0),
            _ => None,
        }
    }

    /// Sets an item's deadline, earlier or later.
    pub(crate) fn set(&mut self, item: u32, deadline: Time) {
        if self.position.len() <= item as usize {
            self.position.resize(item as usize + 1, ABSENT);
        }
        let at = match self.position[item as usize] {
            ABSENT => {
                self.heap.push((deadline, item));
                self.heap.len() - 1
            }
            at => {
                self.heap[at as usize].0 = deadline;
                at as usize
            }
        };
        self.position[item as usize] = at as u32;
        self.sift(at);
    }

    /// Forgets an item.
    pub(crate) fn remove(&mut self, item: u32) {
        let Some(at) = self.position.get(item as usize).copied().filter(|at| *at != ABSENT) else {
            return;
        };
        self.take(at as usize);
    }

    /// Takes out an item whose deadline has come.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let (at, item) = *self.heap.first()?;
        if at > now {
            return None;
        }
        self.take(0);
        Some(item)
    }

    fn take(&mut self, at: usize) {
        let (_, item) = self.heap.swap_remove(at);
        self.position[item as usize] = ABSENT;
        if at < self.heap.len() {
            self.position[self.heap[at].1 as usize] = at as u32;
            self.sift(at);
        }
    }

    /// Moves the entry at `at` to where it belongs.
    fn sift(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let Some(child) = (2 * at + 1..2 * at + 3)
                .filter(|c| *c < self.heap.len())
                .min_by_key(|c| self.heap[*c])
            else {
                return;
            };
            if self.heap[at] <= self.heap[child] {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.position[self.heap[a].1 as usize] = a as u32;
        self.position[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(
            ops in prop::collection::vec((0u32..20, 0u64..50, 0u8..4), 1..300),
        ) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (item, at, op) in ops {
                match op {
                    0 => { timers.remove(item); model.remove(&item); }
                    1 => {
                        let due = timers.pop_due(Time::from_nanos(at));
                        let earliest = model.iter().map(|(i, t)| (*t, *i)).min();
                        match (due, earliest) {
                            (Some(item), Some((t, i))) => {
                                prop_assert_eq!((model[&item], item), (t, i));
                                prop_assert!(t <= at);
                                model.remove(&item);
                            }
                            (None, e) => prop_assert!(e.is_none_or(|(t, _)| t > at)),
                            (Some(_), None) => prop_assert!(false, "popped from an empty set"),
                        }
                    }
                    _ => { timers.set(item, Time::from_nanos(at)); model.insert(item, at); }
                }
                prop_assert_eq!(timers.next().map(Time::as_nanos), model.values().min().copied());
                let deadline = timers.deadline(item).map(Time::as_nanos);
                prop_assert_eq!(deadline, model.get(&item).copied());
            }
        }
    }
}
