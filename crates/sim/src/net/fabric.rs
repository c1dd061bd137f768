//! The network in motion: packets on links and in switches.

use bowline_link::{Arrival, Fate};
use bowline_nic::{ECN_CE, Time};

use super::egress::{Waiting, class_of};
use super::network::{LinkId, Network, NodeId, PortId};
use super::pfc::Signal;
use super::routes::HostIndex;
use super::switch::{Frame, Ports};
use crate::check::Violation;
use crate::event::{Event, EventQueue};
use crate::packet::{PacketId, PacketStore};
use crate::trace::{Record, Trace};
use crate::world::WorldStats;

/// How long a switch processes a packet before it queues it.
pub const SWITCH_LATENCY_NS: u64 = 300;
/// A pause frame with all of Ethernet's overhead.
const PAUSE_FRAME_BYTES: u64 = 84;
/// Timeouts of one switch at one instant. A switch whose timeout stays due would stop the world's
/// clock; this bound turns that into a violation.
const MAX_TIMEOUTS_PER_INSTANT: u32 = 1_000;

/// Everything that packets need to get from one host to another.
pub(crate) struct Fabric {
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) queue: EventQueue,
    pub(crate) network: Network,
    pub(crate) packets: PacketStore,
    pub(crate) trace: Trace,
    pub(crate) violations: Vec<Violation>,
    pub(crate) stats: WorldStats,
    /// The switch whose timeout was handled last, when, and how often since.
    last_timeout: (NodeId, Time, u32),
}

impl Fabric {
    pub(crate) fn new(seed: u64, network: Network) -> Fabric {
        Fabric {
            seed,
            now: Time::ZERO,
            queue: EventQueue::default(),
            network,
            packets: PacketStore::default(),
            trace: Trace::new(seed),
            violations: Vec::new(),
            stats: WorldStats::default(),
            last_timeout: (NodeId(0), Time::ZERO, 0),
        }
    }

    pub(crate) fn record(&mut self, kind: Record, a: u64, b: u64, text: impl FnOnce() -> String) {
        self.trace.record(self.now, kind, a, b, text);
    }

    pub(crate) fn violate(&mut self, what: String) {
        let (seed, time) = (self.seed, self.now);
        self.violations.push(Violation { seed, time, checker: "contract", what });
    }

    /// The ports by which a node can forward a packet.
    #[inline]
    pub(super) fn routes(&mut self, node: NodeId, id: PacketId) -> &[PortId] {
        let target = self.target(id);
        target.map_or(&[], |target| self.network.nodes[node.0 as usize].routes.to(target))
    }

    /// A packet's destination.
    #[inline]
    fn target(&mut self, id: PacketId) -> Option<HostIndex> {
        if self.packets.hop(id).target.is_none() {
            let target = self.network.index_of(self.packets.get(id).dst);
            self.packets.hop_mut(id).target = target;
        }
        self.packets.hop(id).target
    }

    /// Forwards a packet by its destination alone.
    #[inline]
    pub(super) fn send_by_destination(&mut self, node: NodeId, id: PacketId) {
        self.accept_changes(id);
        let link = self.target(id).and_then(|target| self.network.link_to(node, target));
        match link {
            Some(link) => self.send(link, id, SWITCH_LATENCY_NS),
            None => self.discard_in_switch(node, id),
        }
    }

    /// Whether a host is a packet's destination.
    #[inline]
    pub(crate) fn is_for(&mut self, id: PacketId, host: NodeId) -> bool {
        self.target(id).is_some_and(|target| self.network.hosts.node(target) == host)
    }

    /// Drops a packet without a route.
    pub(crate) fn drop_unroutable(&mut self, id: PacketId) {
        self.stats.unroutable += 1;
        self.packets.discard(id);
    }

    pub(super) fn discard_in_switch(&mut self, node: NodeId, id: PacketId) {
        let digest = self.packets.get(id).digest;
        self.record(Record::SwitchDrop, u64::from(node.0), digest, || {
            format!("switch {}: dropped", node.0)
        });
        self.drop_unroutable(id);
    }

    /// A packet reaches a switch.
    #[inline]
    pub(crate) fn enter_switch(&mut self, node: NodeId, ingress: PortId, id: PacketId) {
        let hop = self.packets.hop_mut(id);
        hop.ingress = Some(ingress);
        hop.ttl = hop.ttl.saturating_sub(1);
        if hop.ttl == 0 {
            self.drop_unroutable(id);
            return;
        }
        let now = self.now;
        self.call_switch(node, |switch, ports| {
            switch.handle_frame(now, ingress, Frame(id), ports);
        });
    }

    /// A switch's timeout has come, unless the switch has moved it.
    pub(crate) fn switch_timeout(&mut self, node: NodeId) {
        self.network.nodes[node.0 as usize].armed = Time::NEVER;
        let (last, at, count) = self.last_timeout;
        let again = if (last, at) == (node, self.now) { count + 1 } else { 0 };
        self.last_timeout = (node, self.now, again);
        if again > MAX_TIMEOUTS_PER_INSTANT {
            self.violate(format!("switch {}: handle_timeout leaves its timeout due", node.0));
            return;
        }
        let now = self.now;
        self.call_switch(node, |switch, ports| {
            if switch.poll_timeout().is_some_and(|at| at <= now) {
                switch.handle_timeout(now, ports);
            }
        });
    }

    #[inline]
    fn call_switch(
        &mut self,
        node: NodeId,
        call: impl FnOnce(&mut dyn super::Switch, &mut Ports<'_>),
    ) {
        // Taken out for the duration of the call, which uses the rest of the network.
        let taken = self.network.nodes[node.0 as usize].switch.take();
        let mut switch = taken.expect("a node that forwards is a switch");
        call(&mut *switch, &mut Ports { fabric: self, node });
        let wake = switch.poll_timeout();
        let state = &mut self.network.nodes[node.0 as usize];
        state.switch = Some(switch);
        if let Some(at) = wake.map(|at| at.max(self.now))
            && at < state.armed
        {
            state.armed = at;
            self.queue.push(at, Event::SwitchTimeout { node });
        }
    }

    #[inline]
    pub(super) fn send_from_switch(&mut self, node: NodeId, port: PortId, id: PacketId) {
        self.accept_changes(id);
        let link = self.network.port(node, port);
        self.send(link, id, SWITCH_LATENCY_NS);
    }

    #[inline]
    fn accept_changes(&mut self, id: PacketId) {
        if self.packets.hop(id).is_changed {
            self.packets.accept_changes(id);
        }
    }

    /// Puts a packet on a link, or into the queue in front of it, after some time.
    pub(crate) fn send(&mut self, link: LinkId, id: PacketId, latency_ns: u64) {
        let at = self.now.plus_nanos(latency_ns);
        let wire = &mut self.network.wires[link.0 as usize];
        if wire.egress.is_some() {
            return self.enqueue(at, link, id);
        }
        let hop = self.packets.hop(id);
        let fate = wire.link.admit(at, hop.wire_len as usize, hop.is_ecn_capable);
        match fate {
            // The common case.
            Fate::Arrives(Arrival {
                at,
                copy_at: None,
                damage: None,
                is_reordered: false,
                is_marked: false,
            }) => self.queue.push_in_order(at, link, id),
            fate => self.carry(link, id, fate),
        }
    }

    #[inline(never)]
    fn carry(&mut self, link: LinkId, id: PacketId, fate: Fate) {
        match fate {
            Fate::QueueFull => self.drop_at_queue(link, id),
            Fate::Lost => {
                let packet = self.packets.get(id);
                let digest = packet.digest;
                let text = self.trace.is_logging().then(|| packet.describe());
                self.record(Record::Lost, u64::from(link.0), digest, || {
                    format!("link{}: {}", link.0, text.unwrap_or_default())
                });
                self.packets.discard(id);
            }
            Fate::Arrives(Arrival { at, copy_at, damage, is_reordered, is_marked }) => {
                if is_marked {
                    self.packets.get_mut(id).tos |= ECN_CE;
                }
                if let Some(damage) = damage {
                    self.packets.corrupt(id, damage);
                }
                if let Some(copy_at) = copy_at {
                    let packet = self.packets.duplicate(id);
                    self.queue.push(copy_at, Event::Arrive { link, packet });
                }
                if is_reordered {
                    self.queue.push(at, Event::Arrive { link, packet: id });
                } else {
                    self.queue.push_in_order(at, link, id);
                }
            }
        }
    }

    fn drop_at_queue(&mut self, link: LinkId, id: PacketId) {
        let digest = self.packets.get(id).digest;
        self.record(Record::QueueDrop, u64::from(link.0), digest, || {
            format!("link{}: queue full, dropped", link.0)
        });
        self.packets.discard(id);
    }

    /// Puts a packet into the queue in front of a link.
    fn enqueue(&mut self, ready_at: Time, link: LinkId, id: PacketId) {
        let (hop, class) = (self.packets.hop(id), class_of(self.packets.get(id).tos));
        let bytes = hop.wire_len;
        let from = self.network.wires[link.0 as usize].from;
        let (ingress, node) = (hop.ingress, &mut self.network.nodes[from.0 as usize]);
        let is_host = node.addr.is_some();
        let lossless = node.pfc.as_mut().filter(|pfc| pfc.is_lossless(class));
        let mut charged_to = None;
        if let (Some(pfc), Some(port)) = (lossless, ingress) {
            match pfc.take(port, class, bytes) {
                Ok(signal) => self.signal(from, port, class, signal),
                Err(_) => return self.drop_at_egress(link, id),
            }
            charged_to = Some(port);
        }
        let wire = &mut self.network.wires[link.0 as usize];
        let limit = wire.link.config().queue_bytes;
        let egress = wire.egress.as_mut().expect("it has a queue");
        // A host queues what it may not send: its windows bound that.
        let is_lossy = charged_to.is_none() && !is_host;
        if is_lossy && egress.bytes() + u64::from(bytes) > limit {
            return self.drop_at_egress(link, id);
        }
        egress.push(Waiting { ready_at, packet: id, bytes, class, charged_to });
        self.schedule_departure(link);
    }

    fn drop_at_egress(&mut self, link: LinkId, id: PacketId) {
        let egress = self.network.wires[link.0 as usize].egress.as_mut();
        egress.expect("it has a queue").count_drop();
        self.drop_at_queue(link, id);
    }

    /// Schedules the next departure from a queue.
    fn schedule_departure(&mut self, link: LinkId) {
        let wire = &mut self.network.wires[link.0 as usize];
        let egress = wire.egress.as_mut().expect("it has a queue");
        let Some(ready_at) = egress.ready_at() else { return };
        let at = ready_at.max(wire.link.free_at()).max(self.now);
        if egress.departs_at.is_none_or(|planned| at < planned) {
            egress.departs_at = Some(at);
            self.queue.push(at, Event::Depart { link });
        }
    }

    /// A link can take the next packet from the queue in front of it.
    pub(crate) fn depart(&mut self, link: LinkId) {
        let wire = &mut self.network.wires[link.0 as usize];
        let egress = wire.egress.as_mut().expect("it has a queue");
        if egress.departs_at != Some(self.now) {
            return; // An earlier look has taken its place.
        }
        egress.departs_at = None;
        if wire.link.free_at() <= self.now
            && let Some(waiting) = egress.pop(self.now)
        {
            let backlog = egress.bytes();
            let from = wire.from;
            let is_ecn_capable = self.packets.hop(waiting.packet).is_ecn_capable;
            let len = waiting.bytes as usize;
            let fate = wire.link.transmit(self.now, len, is_ecn_capable, backlog);
            self.carry(link, waiting.packet, fate);
            self.release_buffer(from, &waiting);
        }
        self.schedule_departure(link);
    }

    fn release_buffer(&mut self, node: NodeId, waiting: &Waiting) {
        let Some(port) = waiting.charged_to else { return };
        if let Some(pfc) = &mut self.network.nodes[node.0 as usize].pfc {
            let signal = pfc.release(port, waiting.class, waiting.bytes);
            self.signal(node, port, waiting.class, signal);
        }
    }

    /// Sends a pause frame to the other end of a port. It overtakes queued packets, and is never
    /// lost.
    fn signal(&mut self, node: NodeId, port: PortId, class: u8, signal: Option<Signal>) {
        let Some(signal) = signal else { return };
        let link = self.network.port(node, port);
        let wire = &self.network.wires[link.0 as usize];
        let config = wire.link.config();
        let at = self.now.max(wire.link.free_at());
        let at = at.plus_nanos(config.transmit_ns(PAUSE_FRAME_BYTES) + config.delay_ns);
        let is_on = signal == Signal::Pause;
        self.queue.push(at, Event::Pause { link: wire.reverse, class, is_on });
        self.record(Record::PauseFrame, u64::from(link.0), u64::from(is_on), || {
            format!("link{}: {signal:?} class {class}", link.0)
        });
    }

    /// A pause frame takes effect on the sender of `link`.
    pub(crate) fn pause_link(&mut self, link: LinkId, class: u8, is_on: bool) {
        if let Some(egress) = &mut self.network.wires[link.0 as usize].egress {
            egress.set_paused(class, is_on);
            self.schedule_departure(link);
        }
    }
}
