//! Running one seed.

use std::io::{self, Write};

use bowline_nic::Time;

use super::app::Storm;
use super::report::{Coverage, FaultCount};
use super::scenario::Scenario;
use super::setup::build_world;
use crate::attack::Attacker;
use crate::check::Violation;
use crate::check::quiesce::Rest;
use crate::failover_storm::Runtime;
use crate::sealed_storm::Seals;
use crate::world::{NicId, World};

/// Everything must be done this long after healing.
const LIVENESS_NS: u64 = 3_000_000_000;
/// How long quiescence is watched.
const REST_NS: u64 = 50_000_000;

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Hash of everything that happened.
    pub trace_hash: u64,
    /// Packets that engines sent.
    pub packets: u64,
    /// Virtual time it took.
    pub virtual_time: Time,
    /// Faults injected.
    pub faults: FaultCount,
    /// What was exercised.
    pub coverage: Coverage,
    /// Rules broken; none if all is well.
    pub violations: Vec<Violation>,
}

impl SeedReport {
    /// A world's final statistics; the storm adds its coverage and findings.
    pub(crate) fn of(world: &World, coverage: Coverage, found: &[Violation]) -> SeedReport {
        let mut coverage = Coverage { coalesced: world.stats().coalesced, ..coverage };
        for nic in (0..world.nic_count()).map(NicId) {
            coverage.nic.merge(world.nic(nic).counters());
        }
        SeedReport {
            seed: world.seed(),
            trace_hash: world.trace_hash(),
            packets: world.stats().sent,
            virtual_time: world.now(),
            faults: FaultCount::of(&world.network().stats(), world.stats()),
            coverage,
            violations: world.violations().iter().chain(found).cloned().collect(),
        }
    }
}

/// Runs the storm of a seed.
pub fn run_seed(seed: u64, attacker: Attacker) -> SeedReport {
    run_scenario(&Scenario::draw(seed, attacker), None).expect("without a log nothing is written")
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
    run_scenario(&Scenario::draw(seed, attacker), Some(log))
}

/// Runs a scenario.
pub(crate) fn run_scenario(
    scenario: &Scenario,
    log: Option<Box<dyn Write>>,
) -> io::Result<SeedReport> {
    let (mut world, devices) = build_world(scenario);
    if let Some(log) = log {
        world.keep_log(log);
    }
    world.note(0, || format!("{scenario:#?}"));
    if scenario.sealed.is_some() {
        world.overhear();
    }
    let mut storm = Storm::new(scenario, devices);
    storm.set_up_world(&mut world);
    let deadline = Time::from_nanos(scenario.heal_ns + LIVENESS_NS);
    world.run_until(&mut storm, deadline);
    if storm.sink.is_empty() && world.violations().is_empty() {
        if storm.is_done() {
            rest(&mut storm, &mut world);
        } else {
            let what = storm.unfinished().join("; ");
            storm.sink.report(world.now(), "quiesce", format!("unfinished after healing: {what}"));
        }
    }
    for violation in
        world.violations().iter().chain(storm.sink.violations()).cloned().collect::<Vec<_>>()
    {
        world.note(8, || violation.to_string());
    }
    world.end_log()?;
    Ok(report(&storm, &world))
}

/// Lets packets in flight arrive, then watches whether anything still moves, then checks.
fn rest(storm: &mut Storm<'_>, world: &mut World) {
    let judged = Rest::watch(world, storm, REST_NS);
    storm.sink.check(world.now(), "quiesce", judged);
    storm.judge(world);
    if let Some(seals) = &storm.seals {
        storm.sink.check(world.now(), "nonces", seals.check());
    }
}

fn report(storm: &Storm<'_>, world: &World) -> SeedReport {
    let (nonces, keys) = storm.seals.as_ref().map_or((0, 0), Seals::counts);
    let coverage = Coverage {
        nonces,
        keys,
        fec: storm.fec.counters(),
        failover: storm.failover.as_ref().map_or_else(Default::default, Runtime::coverage),
        read_requests_sent: world.stats().reads_sent,
        atomic_requests_sent: world.stats().atomics_sent,
        ..storm.coverage.clone()
    };
    SeedReport::of(world, coverage, storm.sink.violations())
}
