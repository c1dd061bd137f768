use super::run_seed;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks a rule to be seen before it is pushed.
const SEEDS: u64 = 300;

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
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
}
