//! Running one seed.

use std::io::{self, Write};

use crate::attack::Attacker;
use crate::storm::{Scenario, SeedReport, run_scenario};

/// Runs the storm of a seed.
pub fn run_seed(seed: u64, attacker: Attacker) -> SeedReport {
    let scenario = Scenario::draw_failover(seed, attacker);
    run_scenario(&scenario, None).expect("without a log nothing is written")
}

/// Runs the storm of a seed and writes a readable log of its events.
///
/// # Errors
/// If the log cannot be written.
pub fn run_seed_traced(
    seed: u64,
    attacker: Attacker,
    log: Box<dyn Write>,
) -> io::Result<SeedReport> {
    run_scenario(&Scenario::draw_failover(seed, attacker), Some(log))
}
