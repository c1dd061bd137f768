use crate::attack::Attacker;
use crate::storm::SeedReport;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks a rule to be seen before it is pushed.
const SEEDS: u64 = 600;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);
    // A storm that exercises nothing proves nothing.
    for (name, count) in totals.coverage.cm.iter() {
        assert!(count > 5, "{name}: {count}");
    }
    let faults = &totals.faults;
    assert!(faults.lost > 1_000 && faults.duplicated > 1_000 && faults.reordered > 1_000);
}

#[test]
fn a_forger_breaks_no_rule() {
    let totals = without_violation(SEEDS / 4, |seed| super::run_seed(seed, Attacker::Always));
    assert!(totals.coverage.cm.ghosts > 1_000, "{}", totals.coverage.cm.ghosts);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
    is_repeatable(|seed| super::run_seed(seed, Attacker::Always));
}
