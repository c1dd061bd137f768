//! Running many seeds on all cores.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::report::{Coverage, FaultCount};
use super::run::SeedReport;
use crate::check::Violation;
use crate::hash::mix;

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Rules broken; empty if it panicked.
    pub violations: Vec<Violation>,
    /// What the panic said.
    pub panic: Option<String>,
}

/// The combined result of many seeds. Sums only, so the order of seeds does not matter.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Seeds run.
    pub seeds: u64,
    /// Packets that engines sent.
    pub packets: u64,
    /// Virtual time of all worlds together.
    pub virtual_ns: u64,
    /// Faults injected.
    pub faults: FaultCount,
    /// What was exercised.
    pub coverage: Coverage,
    /// All trace hashes, combined without regard to order.
    pub trace_hash: u64,
}

impl Totals {
    fn add(&mut self, report: &SeedReport) {
        self.seeds += 1;
        self.packets += report.packets;
        self.virtual_ns += report.virtual_time.as_nanos();
        self.faults.merge(&report.faults);
        self.coverage.merge(&report.coverage);
        self.trace_hash = self.trace_hash.wrapping_add(mix(report.trace_hash ^ mix(report.seed)));
    }

    fn merge(&mut self, other: &Totals) {
        self.seeds += other.seeds;
        self.packets += other.packets;
        self.virtual_ns += other.virtual_ns;
        self.faults.merge(&other.faults);
        self.coverage.merge(&other.coverage);
        self.trace_hash = self.trace_hash.wrapping_add(other.trace_hash);
    }
}

/// What a run of many seeds gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Sums.
    pub totals: Totals,
    /// Failed seeds, lowest first.
    pub failures: Vec<Failure>,
}

/// Runs the seeds on `jobs` threads, each with `run`. `progress` is called after every seed, on its
/// thread; once it returns `false`, no further seeds are started.
pub fn run_many(
    seeds: Range<u64>,
    jobs: usize,
    run: impl Fn(u64) -> SeedReport + Sync,
    progress: impl Fn(&Totals, Option<&Failure>) -> bool + Sync,
) -> Outcome {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let mut mine = Outcome::default();
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let mut step = Totals::default();
                    let failure = run_caught(&run, seed, &mut step);
                    mine.totals.merge(&step);
                    if !progress(&step, failure.as_ref()) {
                        stop.store(true, Ordering::Relaxed);
                    }
                    mine.failures.extend(failure);
                }
                let mut all = outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                all.totals.merge(&mine.totals);
                all.failures.append(&mut mine.failures);
            });
        }
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    outcome.failures.sort_by_key(|failure| failure.seed);
    outcome
}

/// A panic of an engine counts as a finding: the seed that reproduces it matters.
fn run_caught(run: &impl Fn(u64) -> SeedReport, seed: u64, totals: &mut Totals) -> Option<Failure> {
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(report) => {
            totals.add(&report);
            let violations = report.violations;
            (!violations.is_empty()).then_some(Failure { seed, violations, panic: None })
        }
        Err(payload) => {
            totals.seeds += 1;
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_else(|| "a panic without a message".into());
            Some(Failure { seed, violations: Vec::new(), panic: Some(text) })
        }
    }
}
