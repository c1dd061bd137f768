//! Nodes, links between them, and the routes that lead from one to another.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use bowline_link::{Fate, Link, LinkConfig, LinkStats};
use bowline_nic::{ECN_CE, ECN_MASK, Time};

use crate::hash::mix;
use crate::packet::Packet;

/// A host's port or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// How long a switch looks at a packet before it queues it.
pub const SWITCH_LATENCY_NS: u64 = 300;

/// Rate and delay of the way from a host to itself.
const LOOPBACK: LinkConfig =
    LinkConfig { rate_bps: Some(200_000_000_000), delay_ns: 500, queue_bytes: 16 << 20, ecn: None };

#[derive(Debug)]
struct Node {
    /// A host's address; none for a switch.
    addr: Option<IpAddr>,
    out: Vec<LinkId>,
    routes: BTreeMap<IpAddr, LinkId>,
}

/// Hosts' ports and output-queued switches, with static routes by destination address.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// Where each link leads.
    ends: Vec<NodeId>,
}

impl Network {
    /// An empty network, whose links draw from `seed`.
    pub fn new(seed: u64) -> Network {
        Network { seed, nodes: Vec::new(), links: Vec::new(), ends: Vec::new() }
    }

    /// Adds a host's port; it reaches itself over a loopback link.
    pub fn add_host(&mut self, addr: IpAddr) -> NodeId {
        let node = self.add_node(Some(addr));
        self.add_link(node, node, LOOPBACK);
        node
    }

    /// Adds a switch.
    pub fn add_switch(&mut self) -> NodeId {
        self.add_node(None)
    }

    fn add_node(&mut self, addr: Option<IpAddr>) -> NodeId {
        self.nodes.push(Node { addr, out: Vec::new(), routes: BTreeMap::new() });
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// Joins two nodes by a cable: one link each way.
    pub fn connect(&mut self, a: NodeId, b: NodeId, config: LinkConfig) -> [LinkId; 2] {
        [self.add_link(a, b, config), self.add_link(b, a, config)]
    }

    fn add_link(&mut self, from: NodeId, to: NodeId, config: LinkConfig) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        // Every link draws from a stream of its own, far from the scenario's.
        self.links.push(Link::new(config, self.seed, (1 << 32) + u64::from(id.0)));
        self.ends.push(to);
        self.nodes[from.0 as usize].out.push(id);
        id
    }

    /// Gives every node a shortest route to every host. Of several equally short ones the
    /// destination's hash picks, which spreads destinations over a fat tree's cores.
    pub fn route(&mut self) {
        for index in 0..self.nodes.len() {
            if let Some(addr) = self.nodes[index].addr {
                self.route_to(NodeId(index as u32), addr);
            }
        }
    }

    fn route_to(&mut self, target: NodeId, addr: IpAddr) {
        let distance = self.distances_to(target);
        for node in 0..self.nodes.len() {
            // A host's own address goes over its loopback link, the first one it has.
            let nearer: Vec<LinkId> = self.nodes[node]
                .out
                .iter()
                .copied()
                .filter(|link| {
                    let end = self.ends[link.0 as usize].0 as usize;
                    let here = distance[node];
                    if node == target.0 as usize { end == node } else { distance[end] < here }
                })
                .collect();
            if !nearer.is_empty() {
                let choice = mix(u64::from(target.0)) % nearer.len() as u64;
                self.nodes[node].routes.insert(addr, nearer[choice as usize]);
            }
        }
    }

    /// Hops from every node to `target`; cables go both ways, so this is a search from `target`.
    fn distances_to(&self, target: NodeId) -> Vec<u32> {
        let mut distance = vec![u32::MAX; self.nodes.len()];
        distance[target.0 as usize] = 0;
        let mut todo = VecDeque::from([target]);
        while let Some(node) = todo.pop_front() {
            for link in &self.nodes[node.0 as usize].out {
                let next = self.ends[link.0 as usize];
                // Hosts do not forward.
                let forwards = node == target || self.nodes[node.0 as usize].addr.is_none();
                if forwards && distance[next.0 as usize] == u32::MAX {
                    distance[next.0 as usize] = distance[node.0 as usize] + 1;
                    todo.push_back(next);
                }
            }
        }
        distance
    }

    /// The link by which `node` sends to `dst`.
    pub fn next_hop(&self, node: NodeId, dst: IpAddr) -> Option<LinkId> {
        self.nodes[node.0 as usize].routes.get(&dst).copied()
    }

    /// Where a link leads.
    pub fn end_of(&self, link: LinkId) -> NodeId {
        self.ends[link.0 as usize]
    }

    /// The address of a host's port; none for a switch.
    pub fn addr_of(&self, node: NodeId) -> Option<IpAddr> {
        self.nodes[node.0 as usize].addr
    }

    /// Puts a packet on a link, which may mark or change it.
    pub fn send(&mut self, now: Time, link: LinkId, packet: &mut Packet) -> Fate {
        let is_ecn_capable = packet.tos & ECN_MASK != 0;
        let fate =
            self.links[link.0 as usize].admit(now, packet.wire_len() as usize, is_ecn_capable);
        if let Fate::Arrives(arrival) = fate {
            if arrival.is_marked {
                packet.tos |= ECN_CE;
            }
            if let Some(damage) = arrival.damage {
                packet.corrupt(damage);
            }
        }
        fate
    }

    /// A link, to change its faults.
    pub fn link_mut(&mut self, link: LinkId) -> &mut Link {
        &mut self.links[link.0 as usize]
    }

    /// All links, loopback ones too.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.links.iter().enumerate().map(|(i, link)| (LinkId(i as u32), link))
    }

    /// The links between nodes, without loopback ones.
    pub fn cables(&self) -> Vec<LinkId> {
        let loops = self.nodes.iter().filter(|n| n.addr.is_some()).map(|n| n.out[0]);
        let loops: Vec<LinkId> = loops.collect();
        self.links().map(|(id, _)| id).filter(|id| !loops.contains(id)).collect()
    }

    /// What all links together have done.
    pub fn stats(&self) -> LinkStats {
        let mut total = LinkStats::default();
        for link in &self.links {
            total.merge(&link.stats());
        }
        total
    }
}
