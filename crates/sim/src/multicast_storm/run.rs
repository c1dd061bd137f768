//! Running one seed.

use std::io::{self, Write};

use bowline_multicast::Merge;
use bowline_nic::{NicConfig, Time, TxCaps};

use super::app::MulticastStorm;
use super::scenario::{MulticastScenario, Shape};
use crate::attack::Attacker;
use crate::check::quiesce::Rest;
use crate::net::{Topology, fat_tree, leaf_spine, star};
use crate::storm::{Coverage, SeedReport};
use crate::world::{HostConfig, RxId, TxId, World};

/// Everything must be done this long after the last action.
const LIVENESS_NS: u64 = 5_000_000_000;
/// How long quiescence is watched: longer than switches wait for members.
const REST_NS: u64 = 300_000_000;
/// Packets that wait at a paused host.
const RING_PACKETS: usize = 512;

/// Runs the storm of a seed.
pub fn run_seed(seed: u64, attacker: Attacker) -> SeedReport {
    run(seed, attacker, None, None).expect("without a log nothing is written")
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
    run(seed, attacker, None, Some(log))
}

/// Runs the storm of a seed; if there is a merge rule under test, every group uses it.
pub(super) fn run(
    seed: u64,
    attacker: Attacker,
    merge: Option<&'static dyn Merge>,
    log: Option<Box<dyn Write>>,
) -> io::Result<SeedReport> {
    let scenario = MulticastScenario::draw(seed, attacker);
    let mut world = build_world(&scenario);
    if let Some(log) = log {
        world.keep_log(log);
    }
    world.note(0, || format!("{scenario:#?}"));
    let mut storm = MulticastStorm::new(&mut world, &scenario, merge);
    let last = scenario.actions.last().map_or(0, |(at, _)| *at);
    world.run_until(&mut storm, Time::from_nanos(last + LIVENESS_NS));
    if storm.sink.is_empty() && world.violations().is_empty() {
        if storm.is_done() {
            let judged = Rest::watch(&mut world, &mut storm, REST_NS);
            storm.sink.check(world.now(), "quiesce", judged);
            storm.judge(&world);
        } else {
            storm.sink.report(
                world.now(),
                "quiesce",
                format!("unfinished: {}", storm.unfinished()),
            );
        }
    }
    let found: Vec<_> = world.violations().iter().chain(storm.sink.violations()).cloned().collect();
    for violation in &found {
        world.note(8, || violation.to_string());
    }
    world.end_log()?;
    let coverage = Coverage { multicast: storm.coverage(), ..Coverage::default() };
    Ok(SeedReport::of(&world, coverage, storm.sink.violations()))
}

fn build_world(scenario: &MulticastScenario) -> World {
    let hosts = scenario.hosts;
    let addrs = if scenario.v6 { Topology::ipv6(hosts) } else { Topology::ipv4(hosts) };
    let (seed, cable) = (scenario.seed, scenario.cable);
    let topology = match scenario.shape {
        Shape::Star => star(seed, &addrs, cable),
        Shape::LeafSpine(sizes) => leaf_spine(seed, sizes, &addrs, cable),
        Shape::FatTree => fat_tree(seed, 4, &addrs, cable),
    };
    let configs = addrs.iter().enumerate().map(|(index, addr)| HostConfig {
        nics: vec![NicConfig::new(*addr, [index as u8 + 1; 32])],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 32,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: RING_PACKETS,
    });
    World::new(seed, topology, configs.collect())
}
