use crate::attack::Attacker;
use crate::storm::SeedReport;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks a rule to be seen before it is pushed.
const SEEDS: u64 = 200;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);
    // A storm that exercises nothing proves nothing.
    for (name, count) in totals.coverage.collective.iter() {
        assert!(count > 10, "{name}: {count}");
    }
    assert!(totals.faults.pauses > 10, "{} stalls", totals.faults.pauses);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
}
