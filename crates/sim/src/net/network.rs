//! Nodes, and the links between them.

use core::net::IpAddr;

use bowline_link::{Link, LinkConfig, LinkStats};
use bowline_nic::Time;

use super::egress::Egress;
use super::forwarding::Routing;
use super::pfc::{Pfc, PfcConfig, PfcStats};
use super::routes::{self, HostIndex, HostTable, LinkTable, Routes};
use super::switch::Switch;

/// A host's port or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// A cable's index at a node, in the order in which cables were connected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// Rate and delay of a host's loopback.
const LOOPBACK: LinkConfig =
    LinkConfig { rate_bps: Some(200_000_000_000), delay_ns: 500, queue_bytes: 16 << 20, ecn: None };

/// A host's first port after its loopback.
const FIRST_CABLE: usize = 1;

pub(super) struct Node {
    /// A host's address; none for a switch.
    pub(super) addr: Option<IpAddr>,
    /// The forwarding logic; taken out during a call, and none for a host.
    pub(super) switch: Option<Box<dyn Switch>>,
    /// Earliest queued timeout event of the switch.
    pub(super) armed: Time,
    /// Links by port. A host's first is its loopback.
    pub(super) out: Vec<LinkId>,
    pub(super) routes: Routes,
    /// Of several routes to a host, the one that routing by destination takes.
    pub(super) by_destination: LinkTable,
    pub(super) pfc: Option<Box<Pfc>>,
}

/// A link and where it is.
pub(super) struct Wire {
    pub(super) link: Link,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    /// The port of `to` that it leads to.
    pub(super) ingress: PortId,
    /// `to` is a switch.
    pub(super) is_to_switch: bool,
    /// The link of the same cable that leads back.
    pub(super) reverse: LinkId,
    /// A queue in front of the link rather than in it, so that its packets can be paused.
    pub(super) egress: Option<Box<Egress>>,
}

/// Hosts' ports and output-queued switches, joined by cables.
pub struct Network {
    seed: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) wires: Vec<Wire>,
    pub(super) hosts: HostTable,
}

impl Network {
    /// An empty network, whose links draw from `seed`.
    pub fn new(seed: u64) -> Network {
        Network { seed, nodes: Vec::new(), wires: Vec::new(), hosts: HostTable::default() }
    }

    /// Adds a host's port; it reaches itself over a loopback link.
    pub fn add_host(&mut self, addr: IpAddr) -> NodeId {
        let node = self.add_node(Some(addr), None);
        let loopback = LinkId(self.wires.len() as u32);
        self.add_link(node, node, PortId(0), loopback, LOOPBACK);
        self.hosts.insert(addr, node);
        node
    }

    /// Adds a switch, which routes by destination until it is told otherwise.
    pub fn add_switch(&mut self) -> NodeId {
        self.add_node(None, Some(Box::new(Routing)))
    }

    fn add_node(&mut self, addr: Option<IpAddr>, switch: Option<Box<dyn Switch>>) -> NodeId {
        self.nodes.push(Node {
            addr,
            switch,
            armed: Time::NEVER,
            out: Vec::new(),
            routes: Routes::default(),
            by_destination: LinkTable::default(),
            pfc: None,
        });
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// Joins two nodes by a cable: one link each way.
    pub fn connect(&mut self, a: NodeId, b: NodeId, config: LinkConfig) -> [LinkId; 2] {
        let [at_a, at_b] = [a, b].map(|n| PortId(self.nodes[n.0 as usize].out.len() as u16));
        let there = LinkId(self.wires.len() as u32);
        let back = LinkId(there.0 + 1);
        self.add_link(a, b, at_b, back, config);
        self.add_link(b, a, at_a, there, config);
        [there, back]
    }

    fn add_link(
        &mut self,
        from: NodeId,
        to: NodeId,
        ingress: PortId,
        reverse: LinkId,
        config: LinkConfig,
    ) {
        let id = LinkId(self.wires.len() as u32);
        // Every link draws from its own stream, apart from the scenario's.
        let link = Link::new(config, self.seed, (1 << 32) + u64::from(id.0));
        let is_to_switch = self.addr_of(to).is_none();
        self.wires.push(Wire { link, from, to, ingress, is_to_switch, reverse, egress: None });
        self.nodes[from.0 as usize].out.push(id);
    }

    /// Sets the forwarding logic of a switch.
    ///
    /// # Panics
    /// If the node is a host.
    pub fn set_switch(&mut self, node: NodeId, switch: Box<dyn Switch>) {
        let node = &mut self.nodes[node.0 as usize];
        assert!(node.addr.is_none(), "hosts do not forward");
        node.switch = Some(switch);
    }

    /// Sets the forwarding logic of all switches.
    pub fn set_switches(&mut self, mut make: impl FnMut(NodeId) -> Box<dyn Switch>) {
        for node in self.switches() {
            self.set_switch(node, make(node));
        }
    }

    /// The switches.
    pub fn switches(&self) -> Vec<NodeId> {
        let all = self.nodes.iter().enumerate().filter(|(_, node)| node.addr.is_none());
        all.map(|(index, _)| NodeId(index as u32)).collect()
    }

    /// Makes a switch lossless for some classes: it pauses its senders before its buffers are full.
    /// Call this once all its cables are connected.
    ///
    /// # Panics
    /// If the node is a host.
    pub fn set_pfc(&mut self, node: NodeId, config: PfcConfig) {
        let ports = self.nodes[node.0 as usize].out.len();
        assert!(self.nodes[node.0 as usize].addr.is_none(), "hosts do not pause their switch");
        self.nodes[node.0 as usize].pfc = Some(Box::new(Pfc::new(config, ports)));
        for wire in &mut self.wires {
            if wire.from == node || wire.to == node {
                wire.egress.get_or_insert_default();
            }
        }
    }

    /// Gives every node the shortest routes to every host.
    pub fn route(&mut self) {
        routes::compute(self);
    }

    pub(super) fn port(&self, node: NodeId, port: PortId) -> LinkId {
        self.nodes[node.0 as usize].out[usize::from(port.0)]
    }

    pub(crate) fn index_of(&self, dst: IpAddr) -> Option<HostIndex> {
        self.hosts.index_of(dst)
    }

    /// The link by which a node that routes by destination sends to a host.
    #[inline]
    pub(super) fn link_to(&self, node: NodeId, target: HostIndex) -> Option<LinkId> {
        self.nodes[node.0 as usize].by_destination.get(target)
    }

    /// The link by which a node that routes by destination sends to `dst`. A host sends to unknown
    /// addresses by its first cable: the switch there may know more.
    pub fn next_hop(&self, node: NodeId, dst: IpAddr) -> Option<LinkId> {
        match self.index_of(dst) {
            Some(target) => self.link_to(node, target),
            None => {
                let node = &self.nodes[node.0 as usize];
                node.addr.and_then(|_| node.out.get(FIRST_CABLE)).copied()
            }
        }
    }

    /// Where a link leads, by which port, and whether that is a switch.
    #[inline]
    pub(crate) fn arrival_of(&self, link: LinkId) -> (NodeId, PortId, bool) {
        let wire = &self.wires[link.0 as usize];
        (wire.to, wire.ingress, wire.is_to_switch)
    }

    /// Where a link leads.
    pub fn end_of(&self, link: LinkId) -> NodeId {
        self.wires[link.0 as usize].to
    }

    /// The address of a host's port; none for a switch.
    pub fn addr_of(&self, node: NodeId) -> Option<IpAddr> {
        self.nodes[node.0 as usize].addr
    }

    /// A link.
    pub fn link(&self, link: LinkId) -> &Link {
        &self.wires[link.0 as usize].link
    }

    /// A link, to change its faults.
    pub fn link_mut(&mut self, link: LinkId) -> &mut Link {
        &mut self.wires[link.0 as usize].link
    }

    /// All links, loopback ones too.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.wires.iter().enumerate().map(|(i, wire)| (LinkId(i as u32), &wire.link))
    }

    /// The links between nodes, without loopback ones.
    pub fn cables(&self) -> Vec<LinkId> {
        let cables = self.wires.iter().enumerate().filter(|(_, wire)| wire.from != wire.to);
        cables.map(|(index, _)| LinkId(index as u32)).collect()
    }

    /// The statistics of all links together, drops of queues in front of them included.
    pub fn stats(&self) -> LinkStats {
        let mut total = LinkStats::default();
        for wire in &self.wires {
            total.merge(&wire.link.stats());
            if let Some(egress) = &wire.egress {
                total.queue_drops += egress.drops();
            }
        }
        total
    }

    /// The statistics of priority flow control in all switches together.
    pub fn pfc_stats(&self) -> PfcStats {
        let mut total = PfcStats::default();
        for pfc in self.nodes.iter().filter_map(|node| node.pfc.as_ref()) {
            total.merge(pfc.stats());
        }
        total
    }
}
