//! Shortest routes.

use core::hash::BuildHasherDefault;
use core::net::IpAddr;
use std::collections::{HashMap, VecDeque};

use super::network::{LinkId, Network, NodeId, PortId};
use crate::hash::{AddrHasher, mix};

/// A host's index in the routing tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIndex(u32);

/// The hosts by their addresses.
#[derive(Debug, Default)]
pub(super) struct HostTable {
    /// Looked up and never iterated, so its order does not matter.
    by_addr: HashMap<IpAddr, HostIndex, BuildHasherDefault<AddrHasher>>,
    nodes: Vec<NodeId>,
}

impl HostTable {
    pub(super) fn insert(&mut self, addr: IpAddr, node: NodeId) {
        self.by_addr.insert(addr, HostIndex(self.nodes.len() as u32));
        self.nodes.push(node);
    }

    pub(super) fn index_of(&self, addr: IpAddr) -> Option<HostIndex> {
        self.by_addr.get(&addr).copied()
    }

    pub(super) fn node(&self, index: HostIndex) -> NodeId {
        self.nodes[index.0 as usize]
    }
}

/// A node's routes: for each host, the ports that start a shortest path to it.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// By host. There are few distinct sets of ports, so this is an index.
    set_of: Vec<u16>,
    sets: Vec<Vec<PortId>>,
}

impl Routes {
    /// Ports to a host; none if it cannot be reached.
    #[inline]
    pub(super) fn to(&self, host: HostIndex) -> &[PortId] {
        let set = self.set_of.get(host.0 as usize).and_then(|set| self.sets.get(usize::from(*set)));
        set.map_or(&[], Vec::as_slice)
    }

    fn push(&mut self, ports: Vec<PortId>) {
        let known = self.sets.iter().position(|set| *set == ports);
        let set = known.unwrap_or_else(|| {
            self.sets.push(ports);
            self.sets.len() - 1
        });
        self.set_of.push(set as u16);
    }
}

/// One link for each host.
#[derive(Debug, Default)]
pub(super) struct LinkTable(Vec<LinkId>);

/// No link.
const NONE: LinkId = LinkId(u32::MAX);

impl LinkTable {
    #[inline]
    pub(super) fn get(&self, host: HostIndex) -> Option<LinkId> {
        self.0.get(host.0 as usize).copied().filter(|link| *link != NONE)
    }
}

/// Gives every node its routes to every host.
pub(super) fn compute(network: &mut Network) {
    for node in &mut network.nodes {
        node.routes = Routes::default();
        node.by_destination = LinkTable::default();
    }
    for host in 0..network.hosts.nodes.len() {
        let target = network.hosts.nodes[host];
        let distance = distances_to(network, target);
        for index in 0..network.nodes.len() {
            let ports = ports_to(network, &distance, NodeId(index as u32), target);
            let node = &mut network.nodes[index];
            // The destination's hash picks, which spreads destinations over a fat tree's cores.
            let choice = mix(u64::from(target.0)).checked_rem(ports.len() as u64);
            let port = choice.map(|choice| usize::from(ports[choice as usize].0));
            node.by_destination.0.push(port.map_or(NONE, |port| node.out[port]));
            node.routes.push(ports);
        }
    }
}

fn ports_to(network: &Network, distance: &[u32], from: NodeId, target: NodeId) -> Vec<PortId> {
    let here = distance[from.0 as usize];
    let is_nearer = |port: &usize| {
        let link = network.nodes[from.0 as usize].out[*port];
        let end = network.end_of(link);
        // A host's own address goes over its loopback.
        if from == target { end == from } else { distance[end.0 as usize] < here }
    };
    let ports = 0..network.nodes[from.0 as usize].out.len();
    ports.filter(is_nearer).map(|port| PortId(port as u16)).collect()
}

/// Hops from every node to `target`; cables go both ways, so this is a search from `target`.
fn distances_to(network: &Network, target: NodeId) -> Vec<u32> {
    let mut distance = vec![u32::MAX; network.nodes.len()];
    distance[target.0 as usize] = 0;
    let mut todo = VecDeque::from([target]);
    while let Some(node) = todo.pop_front() {
        // Hosts do not forward.
        if node != target && network.addr_of(node).is_some() {
            continue;
        }
        for link in &network.nodes[node.0 as usize].out {
            let next = network.end_of(*link);
            if distance[next.0 as usize] == u32::MAX {
                distance[next.0 as usize] = distance[node.0 as usize] + 1;
                todo.push_back(next);
            }
        }
    }
    distance
}
