//! Atomics execute exactly once: fetch-and-adds on one word return all its values, each once;
//! compare-and-swaps by one writer form a chain.

use std::collections::BTreeSet;

/// A word that several QPs add the same constant to.
#[derive(Debug)]
pub struct AddWord {
    start: u64,
    add: u64,
    /// The number of earlier additions, for each addition that returned.
    seen: BTreeSet<u64>,
    /// Failed additions: each executed once or not at all.
    unsure: u64,
}

impl AddWord {
    /// A word that holds `start`; every addition adds `add`, which is odd.
    ///
    /// # Panics
    /// If `add` is even: then two different numbers of additions could give the same value.
    pub fn new(start: u64, add: u64) -> AddWord {
        assert!(add % 2 == 1, "an odd number has an inverse modulo 2^64");
        AddWord { start, add, seen: BTreeSet::new(), unsure: 0 }
    }

    /// The constant.
    pub fn addend(&self) -> u64 {
        self.add
    }

    /// An addition succeeded and returned `original`.
    ///
    /// # Errors
    /// If another addition returned the same value: one of them was executed twice, or not at all.
    pub fn returned(&mut self, original: u64) -> Result<(), String> {
        let before = self.count_of(original);
        if !self.seen.insert(before) {
            return Err(format!(
                "two fetch-and-adds returned {original:#x}, the value after {before}"
            ));
        }
        Ok(())
    }

    /// An addition failed.
    pub fn failed(&mut self) {
        self.unsure += 1;
    }

    /// Whether the additions explain the word's final value.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(&self, value: u64) -> Result<(), String> {
        let done = self.count_of(value);
        let sure = self.seen.len() as u64;
        if !(sure..=sure + self.unsure).contains(&done) {
            return Err(format!(
                "{sure} fetch-and-adds succeeded and {} may have, but the word says {}",
                self.unsure, done as i64
            ));
        }
        match self.seen.last() {
            Some(last) if *last >= done => {
                Err(format!("a fetch-and-add returned the value after {last} of {done}"))
            }
            _ => Ok(()),
        }
    }

    /// How many additions lead to a value.
    fn count_of(&self, value: u64) -> u64 {
        value.wrapping_sub(self.start).wrapping_mul(inverse(self.add))
    }
}

/// Inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the right bits.
fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    for _ in 0..5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
    }
    x
}

/// A compare-and-swap as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Value that the word must have.
    pub compare: u64,
    /// Value that it gets then.
    pub swap: u64,
}

/// A word that one QP alone compares and swaps.
#[derive(Debug)]
pub struct SwapWord {
    value: u64,
    /// Failed requests, in order: a prefix of them was executed.
    unsure: Vec<Swap>,
}

impl SwapWord {
    /// A word that holds `value`.
    pub fn new(value: u64) -> SwapWord {
        SwapWord { value, unsure: Vec::new() }
    }

    /// Its value, as far as results have shown.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// A request succeeded and returned `original`.
    ///
    /// # Errors
    /// If that is not what the word held.
    pub fn returned(&mut self, swap: Swap, original: u64) -> Result<(), String> {
        if original != self.value {
            return Err(format!(
                "compare-and-swap returned {original:#x}, the word held {:#x}",
                self.value
            ));
        }
        if original == swap.compare {
            self.value = swap.swap;
        }
        Ok(())
    }

    /// A request failed.
    pub fn failed(&mut self, swap: Swap) {
        self.unsure.push(swap);
    }

    /// Whether some prefix of the failed requests, or any subset if they need not be `in_order`,
    /// explains `value`; continues from there.
    ///
    /// # Errors
    /// If it is not.
    pub fn settle(&mut self, value: u64, in_order: bool) -> Result<(), String> {
        let mut held = self.value;
        let mut possible = vec![held];
        for swap in self.unsure.drain(..) {
            if held == swap.compare {
                held = swap.swap;
            }
            if in_order {
                possible.push(held);
            } else if possible.contains(&swap.compare) {
                possible.push(swap.swap);
            }
        }
        if !possible.contains(&value) {
            return Err(format!(
                "the word holds {value:#x}; compare-and-swaps leave {:#x}",
                self.value
            ));
        }
        self.value = value;
        Ok(())
    }
}
