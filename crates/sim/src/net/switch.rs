//! The interface of forwarding logic, and the operations available to it.

use core::net::IpAddr;

use bowline_nic::Time;

use super::fabric::Fabric;
use super::network::{NodeId, PortId};
use crate::packet::{Packet, PacketId};

/// A switch's packet processor: frames in, frames out on ports, timers.
///
/// The simulator calls [`handle_frame`](Switch::handle_frame) for each frame that arrives, with its
/// TTL already decremented, and [`handle_timeout`](Switch::handle_timeout) at the time that
/// [`poll_timeout`](Switch::poll_timeout) returned. It calls `poll_timeout` after each of these
/// calls. Time does not go backwards.
///
/// A switch owns the frames that it is given. It forwards them, unchanged or rewritten, holds them
/// to send them later, or discards them. Queues, rates, faults and pauses are the ports'
/// responsibility.
///
/// Runs must be repeatable: a switch reads no clock, and draws randomness from a seed.
pub trait Switch {
    /// A frame arrived at a port.
    fn handle_frame(&mut self, now: Time, ingress: PortId, frame: Frame, ports: &mut Ports<'_>);

    /// The timeout has come.
    fn handle_timeout(&mut self, _now: Time, _ports: &mut Ports<'_>) {}

    /// When to call [`handle_timeout`](Switch::handle_timeout), if at all.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// A frame held by a switch. It must be sent or discarded: one that is dropped instead stays in
/// flight for good, which the storm's checkers report.
#[must_use = "send it or discard it"]
#[derive(Debug, PartialEq, Eq)]
pub struct Frame(pub(super) PacketId);

/// A switch's ports, and the frames that it holds.
pub struct Ports<'a> {
    pub(super) fabric: &'a mut Fabric,
    pub(super) node: NodeId,
}

impl Ports<'_> {
    /// Which switch this is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// How many ports it has.
    pub fn count(&self) -> usize {
        self.fabric.network.nodes[self.node.0 as usize].out.len()
    }

    /// A frame's packet.
    pub fn packet(&self, frame: &Frame) -> &Packet {
        self.fabric.packets.get(frame.0)
    }

    /// A frame's packet, for modification. A change of what the ICRC covers needs a new ICRC
    /// ([`Packet::set_icrc`]).
    pub fn packet_mut(&mut self, frame: &Frame) -> &mut Packet {
        self.fabric.packets.change(frame.0)
    }

    /// The ports that start a shortest path to a frame's destination, all of equal cost; none if
    /// there is no path.
    #[inline]
    pub fn routes(&mut self, frame: &Frame) -> &[PortId] {
        self.fabric.routes(self.node, frame.0)
    }

    /// The ports that start a shortest path to a host.
    pub fn routes_to(&self, dst: IpAddr) -> &[PortId] {
        let network = &self.fabric.network;
        network.index_of(dst).map_or(&[], |i| network.nodes[self.node.0 as usize].routes.to(i))
    }

    /// Bytes that wait at a port to be sent.
    pub fn queued_bytes(&self, port: PortId) -> u64 {
        let wire = &self.fabric.network.wires[self.fabric.network.port(self.node, port).0 as usize];
        let waiting = wire.egress.as_ref().map_or(0, |egress| egress.bytes());
        waiting + wire.link.queued_bytes(self.fabric.now)
    }

    /// A copy of a frame.
    pub fn copy(&mut self, frame: &Frame) -> Frame {
        let copy = self.fabric.packets.duplicate(frame.0);
        self.fabric.packets.hop_mut(copy).is_changed = true;
        Frame(copy)
    }

    /// A frame made by the switch itself.
    pub fn create(&mut self, mut packet: Packet) -> Frame {
        packet.reseal();
        Frame(self.fabric.packets.insert(packet))
    }

    /// Sends a frame; a full queue drops it.
    ///
    /// # Panics
    /// If there is no such port.
    #[inline]
    pub fn send(&mut self, port: PortId, frame: Frame) {
        self.fabric.send_from_switch(self.node, port, frame.0);
    }

    /// Sends a frame as [`Routing`](super::Routing) does, or drops it if there is no path.
    #[inline]
    pub fn send_by_destination(&mut self, frame: Frame) {
        self.fabric.send_by_destination(self.node, frame.0);
    }

    /// Drops a frame.
    pub fn discard(&mut self, frame: Frame) {
        self.fabric.discard_in_switch(self.node, frame.0);
    }
}
