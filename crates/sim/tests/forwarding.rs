//! Which paths packets take, and that lossless classes lose nothing.

#[allow(dead_code, reason = "each test program uses its part")]
mod rig;

use bowline_link::LinkConfig;
use bowline_nic::Time;
use bowline_sim::NicId;
use bowline_sim::net::{Ecmp, PfcConfig, PfcStats, Spray, Switch, Topology, fat_tree, star};
use rig::{CABLE, Rig};

/// How many packets each cable from a switch carried.
fn carried(rig: &Rig) -> Vec<u64> {
    let network = rig.world.network();
    let mut loads: Vec<u64> =
        network.cables().into_iter().map(|cable| network.link(cable).stats().carried).collect();
    loads.sort_unstable_by(|a, b| b.cmp(a));
    loads
}

/// Eight connections between two hosts in different pods of a fat tree.
fn across_the_core(make: impl Fn() -> Box<dyn Switch>) -> Rig {
    let addrs = Topology::ipv4(2);
    let mut topology = fat_tree(1, 4, &addrs, CABLE);
    topology.network.set_switches(|_| make());
    let mut rig = Rig::new(topology, &addrs);
    for _ in 0..8 {
        rig.pair(0, 1, 64 << 10, 1);
    }
    rig.run();
    rig
}

fn retransmitted(rig: &Rig) -> u64 {
    rig.world.nic(NicId(0)).counters().retransmitted_packets
}

#[test]
fn a_flow_keeps_its_way_under_ecmp() {
    let rig = across_the_core(|| Box::new(Ecmp::by_flow()));
    assert_eq!(retransmitted(&rig), 0, "nothing overtook");
    // Data and acknowledgements: six links each, and no others.
    assert_eq!(carried(&rig).iter().filter(|n| **n > 0).count(), 12);
}

#[test]
fn flows_of_different_qps_take_different_ways_if_switches_look_at_them() {
    let rig = across_the_core(|| Box::new(Ecmp::by_flow_and_qpn()));
    assert_eq!(retransmitted(&rig), 0, "nothing overtook");
    assert!(carried(&rig).iter().filter(|n| **n > 0).count() > 16);
}

#[test]
fn spraying_uses_all_ways_alike() {
    for make in [Spray::round_robin, Spray::shortest_queue] {
        let rig = across_the_core(|| Box::new(make()));
        let loads = carried(&rig);
        // The host's two cables carry everything; then two paths up, four over the cores and back,
        // and two down. The rest are acknowledgements.
        let data = loads[0];
        assert!(loads[1] * 10 > data * 9, "{loads:?}");
        for load in &loads[2..6] {
            assert!((load * 2).abs_diff(data) < data / 5, "{loads:?}");
        }
    }
}

/// Four hosts write to a fifth, through a switch whose queues hold a few packets.
fn incast(pfc: Option<PfcConfig>) -> (Rig, PfcStats) {
    let addrs = Topology::ipv4(5);
    let cable = LinkConfig { queue_bytes: 20_000, ..CABLE };
    let mut topology = star(1, &addrs, cable);
    if let Some(config) = pfc {
        for switch in topology.network.switches() {
            topology.network.set_pfc(switch, config);
        }
    }
    let mut rig = Rig::new(topology, &addrs);
    for from in 1..5 {
        rig.pair(from, 0, 64 << 10, 4);
    }
    match pfc {
        Some(_) => rig.run(),
        // Go-back-N would take long to get all through.
        None => rig.world.run_until(&mut rig.app, Time::from_millis(1)),
    }
    let stats = rig.world.network().pfc_stats();
    (rig, stats)
}

/// Packets are of class 0. A cable of 500 ns and a packet in flight when a pause arrives are some
/// 15 kB at 100 Gbit/s.
const PFC: PfcConfig =
    PfcConfig { classes: 1, xoff_bytes: 20_000, xon_bytes: 10_000, headroom_bytes: 16_000 };

#[test]
fn without_pfc_an_incast_overflows_the_switch() {
    let (rig, _) = incast(None);
    assert!(rig.world.network().stats().queue_drops > 0);
}

#[test]
fn a_lossless_class_loses_nothing_within_its_headroom() {
    let (rig, pfc) = incast(Some(PFC));
    assert_eq!((rig.world.network().stats().queue_drops, pfc.headroom_drops), (0, 0));
    assert!((1..5).all(|nic| rig.world.nic(NicId(nic)).counters().retransmitted_packets == 0));
    assert!(pfc.pauses >= 4 && pfc.pauses == pfc.resumes, "{pfc:?}");
    let peak = pfc.ingress_peak_bytes;
    assert!((20_000..=36_000).contains(&peak), "the headroom is used: {peak}");
}

#[test]
fn too_little_headroom_loses_packets() {
    let (_, pfc) = incast(Some(PfcConfig { headroom_bytes: 2_000, ..PFC }));
    assert!(pfc.headroom_drops > 0, "{pfc:?}");
}

#[test]
fn a_lossy_class_is_not_paused() {
    let (rig, pfc) = incast(Some(PfcConfig { classes: 0b1111_1110, ..PFC }));
    assert_eq!((pfc.pauses, pfc.headroom_drops), (0, 0));
    assert!(rig.world.network().stats().queue_drops > 0);
}

#[test]
fn pauses_spread_upstream_and_nothing_is_lost_in_a_fat_tree() {
    let addrs = Topology::ipv4(16);
    let cable = LinkConfig { queue_bytes: 20_000, ..CABLE };
    let mut topology = fat_tree(1, 4, &addrs, cable);
    for switch in topology.network.switches() {
        topology.network.set_pfc(switch, PFC);
    }
    let mut rig = Rig::new(topology, &addrs);
    for from in 1..16 {
        rig.pair(from, 0, 64 << 10, 2);
    }
    rig.run();
    let pfc = rig.world.network().pfc_stats();
    assert_eq!((rig.world.network().stats().queue_drops, pfc.headroom_drops), (0, 0));
    assert!(pfc.pauses > 15, "switches pause switches: {pfc:?}");
}
