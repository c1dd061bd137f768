//! A switch that replicates packets of groups and merges their acknowledgements, driven by the
//! simulator.

use core::net::IpAddr;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use bowline_multicast::{Arrival, Edit, Verdict, plan};
use bowline_nic::Time;

use super::network::{Network, NodeId, PortId};
use super::switch::{Frame, Ports, Switch};
use crate::packet::Packet;

/// The engine of a multicast switch, which the control plane shares.
type Engine = Rc<RefCell<bowline_multicast::Switch>>;

/// The network's IP multicast: what is sent to a multicast address reaches every member, and is
/// rewritten there.
#[derive(Debug, Default)]
pub struct IpMulticast {
    /// Addresses that reach nobody any more.
    pub lost: BTreeSet<IpAddr>,
    /// Packets to multicast addresses.
    pub sent: u64,
}

/// Multicast in front of a forwarding switch.
pub struct Multicast<S> {
    engine: Engine,
    ip: Rc<RefCell<IpMulticast>>,
    /// Forwards copies and all other packets.
    forwarding: S,
}

impl<S: Switch> Multicast<S> {
    /// A switch with this engine. Tables are installed in the engine.
    pub fn new(engine: Engine, ip: Rc<RefCell<IpMulticast>>, forwarding: S) -> Multicast<S> {
        Multicast { engine, ip, forwarding }
    }

    /// Sends a copy of a frame.
    fn copy(
        &mut self,
        now: Time,
        ingress: PortId,
        frame: &Frame,
        edit: &Edit,
        ports: &mut Ports<'_>,
    ) {
        let copy = ports.copy(frame);
        let packet = ports.packet_mut(&copy);
        (packet.src, packet.src_port) = (edit.flow.src, edit.flow.src_port);
        (packet.dst, packet.dst_port) = (edit.flow.dst, edit.flow.dst_port);
        edit.apply(&mut packet.bytes);
        self.forwarding.handle_frame(now, ingress, copy, ports);
    }

    /// Sends the replies that the engine has made.
    fn send_answers(&self, ports: &mut Ports<'_>) {
        while let Some(answer) = self.engine.borrow_mut().poll_transmit() {
            let frame = ports.create(Packet::new(&answer.flow, answer.bytes().to_vec()));
            ports.send_by_destination(frame);
        }
    }
}

impl<S: Switch> Switch for Multicast<S> {
    fn handle_frame(&mut self, now: Time, ingress: PortId, frame: Frame, ports: &mut Ports<'_>) {
        let packet = ports.packet(&frame);
        let ip_id = Some(packet.ip_id);
        let arrival = Arrival { flow: packet.flow_key(), ip_id, bytes: &packet.bytes };
        let verdict = self.engine.borrow_mut().handle_frame(now, &arrival);
        match verdict {
            Verdict::Pass => self.forwarding.handle_frame(now, ingress, frame, ports),
            Verdict::Taken => ports.discard(frame),
            Verdict::Replicate(replicas) => {
                let edit = |branch| self.engine.borrow_mut().edit(&replicas, branch);
                let mut edits: Vec<(usize, Edit)> = replicas
                    .branches()
                    .filter_map(|branch| edit(branch).map(|edit| (branch, edit)))
                    .collect();
                if let [(trunk, Edit { flow, .. })] = edits[..]
                    && flow.dst.is_multicast()
                {
                    let mut ip = self.ip.borrow_mut();
                    ip.sent += 1;
                    // All branches before the trunk are members.
                    let members = if ip.lost.contains(&flow.dst) { 0..0 } else { 0..trunk };
                    let edit_for = |branch| edit(branch).map(|edit| (branch, edit));
                    edits = members.filter_map(edit_for).collect();
                }
                for (_, edit) in edits {
                    self.copy(now, ingress, &frame, &edit, ports);
                }
                ports.discard(frame);
            }
        }
        self.send_answers(ports);
    }

    fn handle_timeout(&mut self, now: Time, ports: &mut Ports<'_>) {
        self.engine.borrow_mut().handle_timeout(now);
        self.send_answers(ports);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.engine.borrow().poll_timeout()
    }
}

/// A network as a planner of groups sees it.
pub struct Routed<'a>(pub &'a Network);

impl plan::Network for Routed<'_> {
    type Node = NodeId;

    fn next_hops(&self, at: NodeId, dst: IpAddr) -> Vec<NodeId> {
        let Some(host) = self.0.index_of(dst) else { return Vec::new() };
        let ports = self.0.nodes[at.0 as usize].routes.to(host);
        ports.iter().map(|port| self.0.end_of(self.0.port(at, *port))).collect()
    }

    fn is_host(&self, node: NodeId) -> bool {
        self.0.addr_of(node).is_some()
    }
}
