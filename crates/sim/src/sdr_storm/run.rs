//! Running one seed.

use std::io::{self, Write};

use bowline_nic::{NicConfig, Time, TxCaps};

use super::app::SdrStorm;
use super::scenario::SdrScenario;
use crate::attack::Attacker;
use crate::check::quiesce::Rest;
use crate::net::{Topology, pair};
use crate::storm::{Coverage, FaultCount, SeedReport};
use crate::world::{HostConfig, NicId, RxId, TxId, World};

/// Everything must be done this long after healing.
const LIVENESS_NS: u64 = 20_000_000_000;
/// How long the world is watched at rest.
const REST_NS: u64 = 200_000_000;
/// Packets that wait at a paused host.
const RING_PACKETS: usize = 512;

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
    let scenario = SdrScenario::draw(seed, attacker);
    let mut world = build_world(&scenario);
    if let Some(log) = log {
        world.keep_log(log);
    }
    world.note(0, || format!("{scenario:#?}"));
    let mut storm = SdrStorm::new(&mut world, &scenario);
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
    let found: Vec<_> = world.violations().iter().chain(storm.sink.violations()).cloned().collect();
    for violation in &found {
        world.note(8, || violation.to_string());
    }
    world.end_log()?;
    let coalesced = world.stats().coalesced;
    let (sdr, attack) = (storm.coverage(), storm.attack_coverage());
    let mut coverage = Coverage { sdr, attack, coalesced, ..Coverage::default() };
    for nic in (0..world.nic_count()).map(NicId) {
        coverage.nic.merge(world.nic(nic).counters());
    }
    Ok(SeedReport {
        seed,
        trace_hash: world.trace_hash(),
        packets: world.stats().sent,
        virtual_time: world.now(),
        faults: FaultCount::of(&world.network().stats(), world.stats()),
        coverage,
        violations: found,
    })
}

/// Lets what is in flight arrive, then watches whether anything still moves, then judges.
fn rest(storm: &mut SdrStorm<'_>, world: &mut World) {
    let calm = world.now().plus_nanos(REST_NS);
    world.run_idle(storm, calm);
    let at_rest = Rest::of(world);
    let end = world.now().plus_nanos(REST_NS);
    world.run_idle(storm, end);
    let judged = at_rest.check(world);
    storm.sink.check(world.now(), "quiesce", judged);
    storm.judge(world);
}

fn build_world(scenario: &SdrScenario) -> World {
    let coalesce_ns = scenario.coalesce_ns;
    let addrs = if coalesce_ns > 0 { Topology::ipv6(2) } else { Topology::ipv4(2) };
    let topology = pair(scenario.seed, [addrs[0], addrs[1]], scenario.cable);
    let hosts = addrs.iter().enumerate().map(|(i, addr)| HostConfig {
        nics: vec![NicConfig::new(*addr, [i as u8 + 1; 32])],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 32,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns,
        ring_packets: RING_PACKETS,
    });
    World::new(scenario.seed, topology, hosts.collect())
}
