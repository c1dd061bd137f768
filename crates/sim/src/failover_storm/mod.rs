//! The storm with two NICs per host: connections move between them as links fail, and return.
//!
//! Traffic and checkers are those of [`crate::storm`]; a seed also draws the agents' mode and
//! timing, and faults of whole rails. `runtime` is the part of a process that surrounds its agent.

mod draw;
mod machine;
mod report;
mod run;
mod runtime;
mod scenario;

pub(crate) use runtime::Runtime;

pub use report::FailoverCoverage;
pub use run::{run_seed, run_seed_traced};
pub use scenario::{Cut, FailoverPlan, Outage};

#[cfg(test)]
mod tests;
