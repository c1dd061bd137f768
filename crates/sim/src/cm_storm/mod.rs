//! The storm over the connection manager: hosts whose applications connect, accept, reject, delay,
//! disconnect and forget, over links that lose, duplicate, reorder and delay, with processes that
//! die and restart without memory. An attacker may forge messages, knowing addresses and queue
//! pairs but no IDs.
//!
//! Checkers: what one end is told is what the other end said; every call finishes; both ends are
//! established, or neither is; an end whose peer has vanished silently is told within the bound of
//! its transport; a healed network connects; nothing is left behind.

mod app;
mod end;
mod forge;
mod judge;
mod look;
mod report;
mod run;
mod scenario;
mod world;

pub use report::CmCoverage;
pub use run::{run_seed, run_seed_traced};
pub use scenario::CmScenario;

#[cfg(test)]
mod tests;
