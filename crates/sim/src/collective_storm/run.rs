//! Running one seed.

use std::io::{self, Write};

use bowline_nic::{NicConfig, Time, TxCaps};

use super::app::CollectiveStorm;
use super::scenario::CollectiveScenario;
use crate::attack::Attacker;
use crate::check::bounds;
use crate::check::quiesce::Rest;
use crate::net::{Topology, star};
use crate::storm::{Coverage, SeedReport};
use crate::world::{HostConfig, RxId, TxId, World};

/// Everything has ended by then: operations, stalls, and what is retransmitted under loss.
const END: Time = Time::from_millis(20_000);
/// How long quiescence is watched.
const REST_NS: u64 = 500_000_000;
/// SDR keeps telling a dead peer of abandoned messages for half a minute.
const SDR_REST_NS: u64 = 60_000_000_000;

/// Runs the storm of a seed. There is no attacker in it.
pub fn run_seed(seed: u64, _attacker: Attacker) -> SeedReport {
    run(seed, None).expect("without a log nothing is written")
}

/// Runs the storm of a seed and writes a readable log of its events.
///
/// # Errors
/// If the log cannot be written.
pub fn run_seed_traced(
    seed: u64,
    _attacker: Attacker,
    log: Box<dyn Write>,
) -> io::Result<SeedReport> {
    run(seed, Some(log))
}

fn run(seed: u64, log: Option<Box<dyn Write>>) -> io::Result<SeedReport> {
    let scenario = CollectiveScenario::draw(seed);
    let mut world = new_world(&scenario);
    if let Some(log) = log {
        world.keep_log(log);
    }
    world.note(0, || format!("{scenario:#?}"));
    let mut storm = CollectiveStorm::new(&mut world, &scenario);
    world.run_until(&mut storm, END);
    let mut coverage = Coverage::default();
    if storm.sink.is_empty() && world.violations().is_empty() {
        let rest_ns = if scenario.config.scheme.is_some() { SDR_REST_NS } else { REST_NS };
        let rest =
            if storm.is_over() { Rest::watch(&mut world, &mut storm, rest_ns) } else { Ok(()) };
        storm.sink.check(world.now(), "quiesce", rest);
        coverage.collective = storm.judge(world.now());
        storm.sink.check(world.now(), "bounds", bounds::check(&world));
    }
    let found: Vec<_> = world.violations().iter().chain(storm.sink.violations()).cloned().collect();
    for violation in &found {
        world.note(8, || violation.to_string());
    }
    world.end_log()?;
    Ok(SeedReport::of(&world, coverage, storm.sink.violations()))
}

fn new_world(scenario: &CollectiveScenario) -> World {
    let addrs = Topology::ipv4(scenario.ranks as usize);
    let hosts = addrs.iter().enumerate().map(|(i, addr)| {
        let mut nic = NicConfig::new(*addr, [i as u8 + 1; 32]);
        nic.max_mtu = scenario.mtu;
        HostConfig {
            nics: vec![nic],
            tx_caps: TxCaps::SINGLE,
            tx_batch: 32,
            tx_id: TxId::Burst,
            rx_id: RxId::Known,
            coalesce_ns: 0,
            ring_packets: 4096,
        }
    });
    World::new(scenario.seed, star(scenario.seed, &addrs, scenario.cable), hosts.collect())
}
