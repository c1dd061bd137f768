//! The storm over collectives: ranks around a switch whose cables lose, reorder, duplicate and
//! delay packets, hosts that stall, and in some seeds one that dies. Operations run over RC, or
//! over XP with bounds.
//!
//! Checkers: every operation ends at every live rank, and all agree on who failed; results are
//! exactly what inputs and reports say; no more than `max_loss` is lost; nothing but the output
//! changes.

mod app;
mod draw;
mod judge;
mod report;
mod run;
mod scenario;

pub use report::CollectiveCoverage;
pub use run::{run_seed, run_seed_traced};
pub use scenario::{CollectiveScenario, OpPlan, Stall};

#[cfg(test)]
mod tests;
