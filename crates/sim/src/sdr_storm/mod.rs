//! The storm over SDR: partial-completion messages and every reliability scheme over them, between
//! two hosts whose cable loses, reorders, duplicates and corrupts packets, and is healed in the
//! end.
//!
//! One connection of each kind: a [`ReliableQp`](bowline_sdr::ReliableQp) whose messages choose
//! their scheme, and a bare [`SdrQp`](bowline_sdr::SdrQp) whose receiver completes messages early,
//! so that packets arrive late and IDs wrap around.

mod app;
mod attack;
mod draw;
pub(crate) mod memory;
mod plain;
mod reliable;
mod report;
mod run;
mod scenario;

pub use report::SdrCoverage;
pub(crate) use run::run_scenario;
pub use run::{run_seed, run_seed_traced};
pub use scenario::{MessagePlan, PlainMessage, PlainPlan, SdrScenario};

#[cfg(test)]
mod tests;
