//! The storm over the connection manager: hosts whose applications connect, accept, reject, think,
//! disconnect and forget, over links that lose, double, reorder and delay, with processes that die
//! and come back without memory. Somebody may forge messages, knowing addresses and queue pairs but
//! no ID.
//!
//! Checkers: what one end is told is what the other end said; every call comes to an end; both ends
//! are established, or neither is; an end whose peer has gone without a word is told within the
//! bound of its transport; a healed network connects; nothing is left behind.

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
