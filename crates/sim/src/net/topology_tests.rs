use core::net::IpAddr;

use bowline_link::{Arrival, Fate, LinkConfig};
use bowline_nic::Time;

use super::topology::{Topology, dumbbell, fat_tree, pair, ring, star};
use crate::packet::Packet;

const CABLE: LinkConfig =
    LinkConfig { rate_bps: Some(10_000_000_000), delay_ns: 1_000, queue_bytes: 1 << 20, ecn: None };

fn packet(dst: IpAddr) -> Packet {
    Packet {
        bytes: vec![0x5a; 500],
        src: Topology::ipv4(1)[0],
        dst,
        src_port: 4791,
        dst_port: 4791,
        tos: 0,
        ttl: 64,
        ip_id: 0,
        digest: 0,
    }
}

/// Carries a packet from one host to another, link by link; returns the number of links.
fn cross(topology: &mut Topology, from: usize, dst: IpAddr) -> Option<usize> {
    let mut node = topology.hosts[from];
    let mut now = Time::ZERO;
    for hops in 1..=16 {
        let link = topology.network.next_hop(node, dst)?;
        let fate = topology.network.send(now, link, &mut packet(dst));
        let Fate::Arrives(Arrival { at, .. }) = fate else { return None };
        assert!(at > now, "a link takes time");
        (now, node) = (at, topology.network.end_of(link));
        if topology.network.addr_of(node) == Some(dst) {
            return Some(hops);
        }
        assert!(topology.network.addr_of(node).is_none(), "hosts do not forward");
    }
    None
}

fn hops(mut topology: Topology, addrs: &[IpAddr]) -> Vec<usize> {
    let mut all = Vec::new();
    for from in 0..addrs.len() {
        for (to, dst) in addrs.iter().enumerate() {
            let hops = cross(&mut topology, from, *dst);
            assert!(hops.is_some(), "host {from} does not reach host {to}");
            if from != to {
                all.extend(hops);
            }
        }
    }
    all
}

#[test]
fn a_pair_is_one_link_apart() {
    let addrs = Topology::ipv4(2);
    assert_eq!(hops(pair(1, [addrs[0], addrs[1]], CABLE), &addrs), [1, 1]);
}

#[test]
fn a_star_is_two_links_apart() {
    let addrs = Topology::ipv6(5);
    assert!(hops(star(1, &addrs, CABLE), &addrs).iter().all(|n| *n == 2));
}

#[test]
fn a_dumbbell_has_a_bottleneck_between_its_sides() {
    let addrs = Topology::ipv4(4);
    let all = hops(dumbbell(1, &addrs, CABLE, CABLE), &addrs);
    assert_eq!(all.iter().filter(|n| **n == 2).count(), 4, "same side");
    assert_eq!(all.iter().filter(|n| **n == 3).count(), 8, "across");
}

#[test]
fn a_ring_goes_the_short_way_round() {
    for count in 1..=7 {
        let addrs = Topology::ipv4(count);
        let all = hops(ring(1, &addrs, CABLE, CABLE), &addrs);
        assert!(all.iter().all(|n| *n <= 2 + count / 2), "{count}: {all:?}");
    }
}

#[test]
fn a_packet_crosses_the_fat_tree_between_any_two_hosts() {
    let addrs = Topology::ipv4(16);
    let all = hops(fat_tree(1, 4, &addrs, CABLE), &addrs);
    // Same edge switch, same pod, across the core.
    assert!(all.iter().all(|n| [2, 4, 6].contains(n)), "{all:?}");
    assert_eq!(all.iter().filter(|n| **n == 2).count(), 16);
    assert_eq!(all.iter().filter(|n| **n == 4).count(), 32);
}

#[test]
fn few_hosts_of_a_fat_tree_are_in_different_pods() {
    let addrs = Topology::ipv4(4);
    assert!(hops(fat_tree(1, 4, &addrs, CABLE), &addrs).iter().all(|n| *n == 6));
}
