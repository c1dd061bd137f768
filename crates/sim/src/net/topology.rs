//! Network topologies.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bowline_link::LinkConfig;

use super::network::{Network, NodeId};

/// A routed network and the hosts' ports in it.
pub struct Topology {
    /// The network.
    pub network: Network,
    /// Hosts' ports, by the order in which their addresses were given.
    pub hosts: Vec<NodeId>,
}

impl Topology {
    /// `count` IPv4 addresses for hosts.
    pub fn ipv4(count: usize) -> Vec<IpAddr> {
        let base = u32::from(Ipv4Addr::new(10, 0, 0, 1));
        (0..count as u32).map(|i| IpAddr::V4(Ipv4Addr::from(base + i))).collect()
    }

    /// `count` IPv6 addresses for hosts.
    pub fn ipv6(count: usize) -> Vec<IpAddr> {
        let base = u128::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
        (0..count as u128).map(|i| IpAddr::V6(Ipv6Addr::from(base + i))).collect()
    }
}

/// Two hosts and a cable.
pub fn pair(seed: u64, addrs: [IpAddr; 2], cable: LinkConfig) -> Topology {
    let mut network = Network::new(seed);
    let hosts = addrs.map(|addr| network.add_host(addr)).to_vec();
    network.connect(hosts[0], hosts[1], cable);
    finish(network, hosts)
}

/// Hosts around one switch.
pub fn star(seed: u64, addrs: &[IpAddr], cable: LinkConfig) -> Topology {
    let mut network = Network::new(seed);
    let switch = network.add_switch();
    let hosts = addrs.iter().map(|addr| attach(&mut network, *addr, switch, cable)).collect();
    finish(network, hosts)
}

/// Separate rails: the hosts of each around its own switch.
pub fn rails(seed: u64, addrs: &[&[IpAddr]], cable: LinkConfig) -> Topology {
    let mut network = Network::new(seed);
    let mut hosts = Vec::new();
    for rail in addrs {
        let switch = network.add_switch();
        hosts.extend(rail.iter().map(|addr| attach(&mut network, *addr, switch, cable)));
    }
    finish(network, hosts)
}

/// Two switches with a bottleneck between them; hosts alternate between the two sides.
pub fn dumbbell(
    seed: u64,
    addrs: &[IpAddr],
    access: LinkConfig,
    bottleneck: LinkConfig,
) -> Topology {
    let mut network = Network::new(seed);
    let sides = [network.add_switch(), network.add_switch()];
    network.connect(sides[0], sides[1], bottleneck);
    let hosts = addrs
        .iter()
        .enumerate()
        .map(|(i, addr)| attach(&mut network, *addr, sides[i % 2], access))
        .collect();
    finish(network, hosts)
}

/// A ring of datacenters, each one switch with one host, joined by long-haul links.
pub fn ring(seed: u64, addrs: &[IpAddr], access: LinkConfig, long_haul: LinkConfig) -> Topology {
    let mut network = Network::new(seed);
    let gateways: Vec<NodeId> = addrs.iter().map(|_| network.add_switch()).collect();
    for (i, gateway) in gateways.iter().enumerate() {
        let next = (i + 1) % gateways.len();
        // Two datacenters are joined by one link, and a single one by none.
        if next != i && (next > i || gateways.len() > 2) {
            network.connect(*gateway, gateways[next], long_haul);
        }
    }
    let hosts = addrs
        .iter()
        .zip(&gateways)
        .map(|(addr, gateway)| attach(&mut network, *addr, *gateway, access))
        .collect();
    finish(network, hosts)
}

/// A fat tree of `k`-port switches: `k` pods, `k²/4` cores, up to `k³/4` hosts.
///
/// # Panics
/// If `k` is odd or zero, or there are more addresses than places.
pub fn fat_tree(seed: u64, k: usize, addrs: &[IpAddr], cable: LinkConfig) -> Topology {
    assert!(k > 0 && k.is_multiple_of(2), "a fat tree's switches have an even number of ports");
    assert!(
        addrs.len() <= k * k * k / 4,
        "a fat tree of {k}-port switches has {} places",
        k * k * k / 4
    );
    let half = k / 2;
    let mut network = Network::new(seed);
    let cores: Vec<NodeId> = (0..half * half).map(|_| network.add_switch()).collect();
    let mut places = Vec::with_capacity(k * half);
    for _pod in 0..k {
        let edges: Vec<NodeId> = (0..half).map(|_| network.add_switch()).collect();
        for group in cores.chunks(half) {
            let aggregation = network.add_switch();
            for core in group {
                network.connect(aggregation, *core, cable);
            }
            for edge in &edges {
                network.connect(aggregation, *edge, cable);
            }
        }
        places.extend(edges);
    }
    let hosts = addrs
        .iter()
        .enumerate()
        // Neighbours in the list are in different pods, so that even few hosts use the core.
        .map(|(i, addr)| {
            attach(&mut network, *addr, places[i * half % places.len() + i / k % half], cable)
        })
        .collect();
    finish(network, hosts)
}

/// Leaves with hosts, distributed in turn, and spines that each join all leaves.
///
/// # Panics
/// If there is no leaf, or several without a spine.
pub fn leaf_spine(
    seed: u64,
    [leaves, spines]: [usize; 2],
    addrs: &[IpAddr],
    cable: LinkConfig,
) -> Topology {
    assert!(leaves == 1 || (leaves > 1 && spines > 0), "leaves are joined by spines");
    let mut network = Network::new(seed);
    let leaves: Vec<NodeId> = (0..leaves).map(|_| network.add_switch()).collect();
    for _ in 0..spines {
        let spine = network.add_switch();
        for leaf in &leaves {
            network.connect(*leaf, spine, cable);
        }
    }
    let hosts = addrs
        .iter()
        .enumerate()
        .map(|(i, addr)| attach(&mut network, *addr, leaves[i % leaves.len()], cable))
        .collect();
    finish(network, hosts)
}

fn attach(network: &mut Network, addr: IpAddr, switch: NodeId, cable: LinkConfig) -> NodeId {
    let host = network.add_host(addr);
    network.connect(host, switch, cable);
    host
}

fn finish(mut network: Network, hosts: Vec<NodeId>) -> Topology {
    network.route();
    Topology { network, hosts }
}
