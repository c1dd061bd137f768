use super::{SdrScenario, run_seed};
use crate::storm::run_many;

/// Enough for a change that breaks a scheme to be seen before it is pushed.
const SEEDS: u64 = 150;

#[test]
fn no_seed_breaks_a_rule() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = run_many(0..SEEDS, jobs, run_seed, |_, _| true);
    let failures: Vec<String> = outcome
        .failures
        .iter()
        .map(|f| format!("seed {}: {:?} {:?}", f.seed, f.panic, f.violations.first()))
        .collect();
    assert!(failures.is_empty(), "{failures:#?}");
    // A storm that exercises nothing proves nothing.
    for (name, count) in outcome.totals.coverage.sdr.iter() {
        assert!(count > 10, "{name}: {count}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 2, 1_000_003] {
        let [first, again] = [0, 1].map(|_| run_seed(seed));
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed}");
        assert_eq!(first.coverage, again.coverage);
    }
}

#[test]
fn drawn_parameters_are_legal() {
    for seed in 0..2_000 {
        let scenario = SdrScenario::draw(seed);
        scenario.reliable.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        scenario.plain.config.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
