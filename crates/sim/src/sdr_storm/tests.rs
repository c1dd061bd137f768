use super::SdrScenario;
use crate::attack::Attacker;
use crate::storm::SeedReport;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks a scheme to be seen before it is pushed.
const SEEDS: u64 = 150;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);
    // A storm that exercises nothing proves nothing.
    for (name, count) in totals.coverage.sdr.iter() {
        assert!(count > 10, "{name}: {count}");
    }
    assert!(totals.coverage.coalesced > 1_000, "{}", totals.coverage.coalesced);
}

#[test]
fn an_attacker_breaks_no_rule() {
    let totals = without_violation(SEEDS, |seed| super::run_seed(seed, Attacker::Always));
    let attack = &totals.coverage.attack;
    for wanted in ["forged SDR control", "forged WRITEs", "control messages refused"] {
        let count = attack.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, n)| n);
        assert!(count > 1_000, "{wanted}: {count}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
}

#[test]
fn drawn_parameters_are_legal() {
    for seed in 0..2_000 {
        let scenario = SdrScenario::draw(seed, Attacker::Drawn);
        scenario.reliable.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        scenario.plain.config.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
