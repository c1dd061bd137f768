//! Running one seed.

use std::io::{self, Write};

use bowline_link::LinkStats;

use super::scenario::{CmScenario, Try};
use super::world::{Act, CmWorld, Step};
use crate::attack::Attacker;
use crate::storm::{Coverage, FaultCount, SeedReport};
use crate::world::WorldStats;

/// Time between connects on the healed network.
const APART_NS: u64 = 100_000_000;

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
    let scenario = CmScenario::draw(seed, attacker);
    let mut world = CmWorld::new(&scenario, log);
    world.note(0, || format!("{scenario:#?}"));
    world.run();
    if world.sink.is_empty() {
        world.judge_rest();
    }
    if world.sink.is_empty() {
        try_all(&mut world);
    }
    if world.sink.is_empty() {
        clean_up(&mut world);
    }
    let found: Vec<_> = world.sink.violations().to_vec();
    for violation in &found {
        world.note(8, || violation.to_string());
    }
    world.end_log()?;
    let mut links = LinkStats::default();
    world.links.iter().for_each(|link| links.merge(&link.stats()));
    Ok(SeedReport {
        seed,
        trace_hash: world.trace.hash(),
        packets: world.packets,
        virtual_time: world.now,
        faults: FaultCount::of(&links, &WorldStats::default()),
        coverage: Coverage { cm: world.coverage, ..Coverage::default() },
        violations: found,
    })
}

/// Everybody connects to everybody, now that the network is healed.
fn try_all(world: &mut CmWorld<'_>) {
    let hosts = world.hosts.len();
    let pairs = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to)));
    // One after the other, so that they do not compete for a place in a backlog.
    let mut after_ns = 0;
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        for sidr in [false, true] {
            after_ns += APART_NS;
            let what = Try { at_ns: 0, from, to, sidr };
            world.after(after_ns, Step::Try { what, strict: true });
        }
    }
    world.run();
    world.judge_strict();
    world.judge_rest();
}

/// All applications end, and nothing may be left.
fn clean_up(world: &mut CmWorld<'_>) {
    let ends: Vec<usize> = world.hosts.iter().flat_map(|host| host.ids.values().copied()).collect();
    for end in ends {
        world.after(0, Step::Act { end, act: Act::Forget });
    }
    world.run();
    world.judge_end();
}
