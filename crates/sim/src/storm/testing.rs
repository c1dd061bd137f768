//! Helpers for the tests of every kind of storm.

use super::{SeedReport, Totals, run_many};

/// Runs the seeds below `seeds`, which must break no rule; returns their coverage.
pub(crate) fn without_violation(seeds: u64, run: impl Fn(u64) -> SeedReport + Sync) -> Totals {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = run_many(0..seeds, jobs, run, |_, _| true);
    let failures: Vec<String> = outcome
        .failures
        .iter()
        .map(|f| format!("seed {}: {:?} {:?}", f.seed, f.panic, f.violations.first()))
        .collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(outcome.totals.seeds, seeds);
    outcome.totals
}

/// A seed must give the same run each time.
pub(crate) fn is_repeatable(run: impl Fn(u64) -> SeedReport) {
    for seed in [1, 2, 1_000_003] {
        let [first, again] = [0, 1].map(|_| run(seed));
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed}");
        assert_eq!(first.coverage, again.coverage, "seed {seed}");
        assert_eq!(first.virtual_time, again.virtual_time, "seed {seed}");
    }
}
