use crate::attack::Attacker;
use crate::storm::SeedReport;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks a rule to be seen before it is pushed.
const SEEDS: u64 = 300;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);
    // A storm that exercises nothing proves nothing.
    for (name, count) in totals.coverage.xp.iter() {
        assert!(count > 10, "{name}: {count}");
    }
    let nic = &totals.coverage.nic;
    for (name, count) in [
        ("late", nic.drop_late),
        ("duplicates", nic.duplicates),
        ("without receive", nic.drop_no_receive),
        ("coalesced", totals.coverage.coalesced),
    ] {
        assert!(count > 500, "{name}: {count}");
    }
}

#[test]
fn an_attacker_without_the_token_breaks_no_rule() {
    let totals = without_violation(SEEDS / 2, |seed| super::run_seed(seed, Attacker::Always));
    let attack = &totals.coverage.attack;
    for wanted in ["forged XP packets", "forged XP feedback"] {
        let count = attack.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, n)| n);
        assert!(count > 1_000, "{wanted}: {count}");
    }
    let refused = totals.coverage.nic.drop_token;
    assert!(refused > 1_000, "{refused} packets refused for their token");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
    is_repeatable(|seed| super::run_seed(seed, Attacker::Always));
}
