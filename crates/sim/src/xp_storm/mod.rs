//! The storm over XP: messages with deadlines between two hosts whose cable loses, reorders,
//! duplicates, corrupts and delays packets, past every deadline. Nothing is healed: every request
//! ends by itself. An attacker who knows all but the token may forge packets ([`crate::attack`]).
//!
//! Checkers: nothing is placed outside of its message or after its end, every request ends by its
//! deadline, the reported bytes are those that are there, and what is reported missing is exactly
//! what is missing.

mod app;
mod attack;
mod draw;
mod end;
mod judge;
mod report;
mod run;
mod scenario;

pub use report::XpCoverage;
pub(crate) use run::run_scenario;
pub use run::{run_seed, run_seed_traced};
pub use scenario::{Kind, MessagePlan, ReceivePlan, XpScenario};

#[cfg(test)]
mod tests;
