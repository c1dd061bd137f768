//! Checkers, separate from the world: each file knows one rule, keeps a model of the expected
//! state, and compares it with the actual one.

pub mod atomics;
pub mod bounds;
pub mod bytes;
pub mod completions;
pub mod delivery;
pub mod guards;
pub mod pattern;
pub mod quiesce;
pub mod wire;

use core::fmt;

use bowline_nic::Time;

#[cfg(test)]
mod tests;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Seed that reproduces it.
    pub seed: u64,
    /// When it was seen.
    pub time: Time,
    /// Which checker saw it.
    pub checker: &'static str,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} at {}: {}: {}", self.seed, self.time, self.checker, self.what)
    }
}

/// Collects violations, of which it keeps the first few.
#[derive(Debug)]
pub struct Sink {
    seed: u64,
    found: Vec<Violation>,
}

/// Violations kept: those after the first are mostly its consequences.
const MAX_VIOLATIONS: usize = 16;

impl Sink {
    /// An empty one.
    pub fn new(seed: u64) -> Sink {
        Sink { seed, found: Vec::new() }
    }

    /// Records a broken rule.
    pub fn report(&mut self, time: Time, checker: &'static str, what: impl Into<String>) {
        if self.found.len() < MAX_VIOLATIONS {
            self.found.push(Violation { seed: self.seed, time, checker, what: what.into() });
        }
    }

    /// Records the error of a check, if it is one.
    pub fn check(&mut self, time: Time, checker: &'static str, result: Result<(), String>) {
        if let Err(what) = result {
            self.report(time, checker, what);
        }
    }

    /// Whether no rule is broken so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// What was found so far.
    pub fn violations(&self) -> &[Violation] {
        &self.found
    }

    /// What was found.
    pub fn into_violations(self) -> Vec<Violation> {
        self.found
    }
}
