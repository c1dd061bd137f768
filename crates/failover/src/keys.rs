//! Which memory keys of its peer a spare has learned, so that a key is taught again only when it
//! has changed.

use std::collections::BTreeMap;

/// Maximum number of keys remembered for a connection.
const MAX_KEYS: usize = 1 << 16;

/// The keys that a connection's requests have used, and what its spare knows about them.
#[derive(Debug, Default)]
pub(crate) struct TaughtKeys {
    /// Requests before this one have been inspected.
    looked: u64,
    /// What the spare was taught for each key.
    taught: BTreeMap<u32, Option<u32>>,
    /// The version of the answers that it was taught.
    changes: u64,
}

impl TaughtKeys {
    /// The first request that has not been inspected for keys.
    pub(crate) fn looked_until(&self) -> u64 {
        self.looked
    }

    /// Takes the keys that requests up to `until` have used, and the current version of the
    /// answers. Returns whether there is anything to teach.
    pub(crate) fn hear(&mut self, named: &[u32], until: u64, changes: u64) -> bool {
        self.looked = until;
        let mut news = std::mem::replace(&mut self.changes, changes) != changes;
        for key in named {
            if self.taught.len() < MAX_KEYS && !self.taught.contains_key(key) {
                self.taught.insert(*key, None);
                news = true;
            }
        }
        news && !self.taught.is_empty()
    }

    /// Teaches the results of `look` that differ from what was taught before.
    pub(crate) fn teach(
        &mut self,
        mut look: impl FnMut(u32) -> Option<u32>,
        mut learn: impl FnMut(u32, u32),
    ) {
        for (named, taught) in &mut self.taught {
            if let Some(here) = look(*named)
                && taught.replace(here) != Some(here)
            {
                learn(*named, here);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught(keys: &mut TaughtKeys, answer: Option<u32>) -> Vec<(u32, u32)> {
        let mut learned = Vec::new();
        keys.teach(|_| answer, |named, here| learned.push((named, here)));
        learned
    }

    #[test]
    fn a_key_is_taught_once_for_each_change() {
        let mut keys = TaughtKeys::default();
        assert!(!keys.hear(&[], 5, 0));
        assert_eq!(keys.looked_until(), 5);
        assert!(keys.hear(&[7], 6, 0), "a new key");
        assert_eq!(taught(&mut keys, None), []);
        assert!(!keys.hear(&[7], 7, 0), "nothing is new");
        assert!(keys.hear(&[], 7, 1), "the store has an answer");
        assert_eq!(taught(&mut keys, Some(9)), [(7, 9)]);
        assert!(!keys.hear(&[7], 8, 1));
        assert!(keys.hear(&[], 8, 2), "the peer has registered other memory");
        assert_eq!(taught(&mut keys, Some(10)), [(7, 10)]);
        assert!(keys.hear(&[8], 9, 2));
        assert_eq!(taught(&mut keys, Some(10)), [(8, 10)], "the other is known already");
    }
}
