//! The storm with two NICs per host: connections move between them as links die, and come home.
//!
//! Traffic and checkers are those of [`crate::storm`]; a seed also draws the agents' mode and
//! times, and faults of whole rails. What a process that uses failover does around its agent is in
//! `runtime`.

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
