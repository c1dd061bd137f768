//! Entries that a transfer leaves out, and the reasons. The rest of the transfer continues.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::message::{LeftOut, MAX_FAILURES, MAX_REASON};

/// Reasons by index of the entry in the tree.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<BTreeMap<usize, String>>);

impl Failures {
    /// Leaves an entry out. The first reason stays.
    pub(super) fn add(&self, entry: usize, why: impl Into<String>) {
        self.lock().entry(entry).or_insert_with(|| shorten(why.into()));
    }

    pub(super) fn contains(&self, entry: usize) -> bool {
        self.lock().contains_key(&entry)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// All failures, in the order of the tree.
    pub(super) fn list(&self) -> Vec<(usize, String)> {
        self.lock().iter().map(|(entry, why)| (*entry, why.clone())).collect()
    }

    /// Failures for which `told` returns false, in messages of bounded length.
    pub(super) fn batches(&self, told: impl Fn(usize) -> bool) -> Vec<Vec<LeftOut>> {
        let all: Vec<LeftOut> = self
            .list()
            .into_iter()
            .filter(|(entry, _)| !told(*entry))
            .map(|(entry, why)| LeftOut { entry: entry as u32, why })
            .collect();
        all.chunks(MAX_FAILURES).map(<[LeftOut]>::to_vec).collect()
    }

    /// Adds the peer's failures. Returns `None` if they are invalid.
    pub(super) fn hear(&self, left_out: Vec<LeftOut>, entries: usize) -> Option<()> {
        for LeftOut { entry, why } in left_out {
            let entry = entry as usize;
            if entry >= entries || why.len() > MAX_REASON {
                return None;
            }
            self.add(entry, why);
        }
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shortens a reason so that it fits.
fn shorten(mut why: String) -> String {
    while why.len() > MAX_REASON {
        why.pop();
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_told_once_in_messages_that_fit() {
        let failures = Failures::default();
        (0..200).rev().for_each(|entry| failures.add(entry, "é".repeat(entry * 7)));
        failures.add(3, "another reason");
        let heard = Failures::default();
        for batch in failures.batches(|entry| entry == 5) {
            assert!(postcard::to_stdvec(&batch).unwrap().len() < bowline::setup::MAX_BODY);
            heard.hear(batch, 200).unwrap();
        }
        assert!(!heard.contains(5) && heard.contains(199));
        assert_eq!(heard.list().len(), 199);
        assert_eq!(heard.list()[3].1, failures.list()[3].1);
        let beyond = LeftOut { entry: 200, why: String::new() };
        assert!(heard.hear(vec![beyond], 200).is_none());
        let long = LeftOut { entry: 0, why: "x".repeat(MAX_REASON + 1) };
        assert!(heard.hear(vec![long], 200).is_none());
    }
}
