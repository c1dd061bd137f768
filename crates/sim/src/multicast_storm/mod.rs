//! The storm over reliable multicast: groups of 1 to 16 members over one switch, leaf–spine and fat
//! trees, with faults on every link; members that pause, die, join, leave and have no receives;
//! switches that lose their state; IP multicast that works, or no longer does; an attacker who
//! forges packets.
//!
//! Checkers: a completed request is in the memory of every member that the completion covers;
//! receives complete once and in order; nothing outside of a slot changes; requests fail only for a
//! reason; the world becomes quiescent.

mod app;
mod attack;
mod control;
mod draw;
mod group;
mod judge;
mod report;
mod run;
mod scenario;

pub(crate) use control::Control;
pub use report::MulticastCoverage;
pub use run::{run_seed, run_seed_traced};
pub use scenario::{Action, GroupPlan, Kind, MemberPlan, MessagePlan, MulticastScenario, Shape};

#[cfg(test)]
mod tests;
