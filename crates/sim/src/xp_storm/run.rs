//! Running one seed.

use std::io::{self, Write};

use super::app::XpStorm;
use super::scenario::XpScenario;
use crate::attack::Attacker;
use crate::check::quiesce::Rest;
use crate::sealed_storm::Seals;
use crate::storm::{Coverage, SeedReport};
use crate::world::World;

/// How long quiescence is watched.
const REST_NS: u64 = 200_000_000;

/// Runs the storm of a seed.
pub fn run_seed(seed: u64, attacker: Attacker) -> SeedReport {
    run(seed, attacker, None).expect("without a log nothing is written")
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
    run(seed, attacker, Some(log))
}

fn run(seed: u64, attacker: Attacker, log: Option<Box<dyn Write>>) -> io::Result<SeedReport> {
    run_scenario(&XpScenario::draw(seed, attacker), log)
}

/// Runs a scenario.
pub(crate) fn run_scenario(
    scenario: &XpScenario,
    log: Option<Box<dyn Write>>,
) -> io::Result<SeedReport> {
    let mut world = World::of_two(scenario.seed, scenario.cable, scenario.coalesce_ns);
    if let Some(log) = log {
        world.keep_log(log);
    }
    world.note(0, || format!("{scenario:#?}"));
    if scenario.sealed.is_some() {
        world.overhear();
    }
    let mut storm = XpStorm::new(&mut world, scenario);
    world.run_until(&mut storm, XpStorm::end_of(scenario));
    if storm.sink.is_empty() && world.violations().is_empty() {
        storm.check_ended(world.now());
        rest(&mut storm, &mut world);
    }
    let found: Vec<_> = world.violations().iter().chain(storm.sink.violations()).cloned().collect();
    for violation in &found {
        world.note(8, || violation.to_string());
    }
    world.end_log()?;
    let (xp, attack) = (storm.coverage, storm.attacked);
    let (nonces, keys) = storm.seals.as_ref().map_or((0, 0), Seals::counts);
    let coverage = Coverage { xp, attack, nonces, keys, ..Coverage::default() };
    Ok(SeedReport::of(&world, coverage, storm.sink.violations()))
}

/// Lets late packets arrive, then watches whether anything still moves, then checks.
fn rest(storm: &mut XpStorm<'_>, world: &mut World) {
    let judged = Rest::watch(world, storm, REST_NS);
    storm.sink.check(world.now(), "quiesce", judged);
    storm.judge(world);
    if let Some(seals) = &storm.seals {
        storm.sink.check(world.now(), "nonces", seals.check());
    }
}
