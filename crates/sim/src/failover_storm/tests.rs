use crate::attack::Attacker;
use crate::storm::testing::{is_repeatable, without_violation};
use crate::storm::{Scenario, SeedReport};

/// Enough for a change that breaks failover to be seen before it is pushed.
const SEEDS: u64 = 60;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);
    // A storm that exercises nothing proves nothing.
    let coverage = &totals.coverage.failover;
    for (name, count) in [
        ("moves", coverage.moves),
        ("returns", coverage.returns),
        ("moves with requests", coverage.with_requests),
        ("moves home because the backup failed", coverage.flights_home),
        ("own ports", coverage.local_ports),
        ("peers' ports", coverage.peer_ports),
        ("moves begun by both ends", coverage.crossed),
        ("moves overtaken", coverage.overtaken),
        ("connections given up", coverage.no_answer),
        ("atomics in flight", coverage.atomics_in_flight),
        ("resets while away", coverage.removed_away),
        ("sleeping agents", coverage.naps),
    ] {
        assert!(count > 0, "{name}");
    }
}

#[test]
fn an_attacker_breaks_no_rule() {
    let totals = without_violation(SEEDS, |seed| super::run_seed(seed, Attacker::Always));
    let forged = totals.coverage.attack.iter().find(|(name, _)| *name == "forged agents' messages");
    assert!(forged.is_some_and(|(_, count)| count > 100), "{forged:?}");
    assert!(totals.coverage.failover.strangers > 100, "{}", totals.coverage.failover.strangers);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
}

#[test]
fn gentle_scenarios_never_cut_both_rails() {
    for seed in 0..500 {
        let scenario = Scenario::draw_failover(seed, Attacker::Drawn);
        let outages = scenario.failover.map_or_else(Vec::new, |plan| plan.outages);
        if !scenario.mild {
            continue;
        }
        for (i, a) in outages.iter().enumerate() {
            let overlap = outages[i + 1..].iter().find(|b| {
                b.rail != a.rail && b.at_ns < a.at_ns + a.for_ns && a.at_ns < b.at_ns + b.for_ns
            });
            assert_eq!(overlap, None, "seed {seed}: {a:?}");
        }
    }
}
