//! Switches that forward packets unchanged: by destination, by flow, or packet by packet.

use bowline_nic::Time;
use bowline_wire::FlowKey;

use super::network::PortId;
use super::switch::{Frame, Ports, Switch};
use crate::hash::TraceHash;
use crate::packet::Packet;

/// Static routes by destination. Among equal-cost routes the destination's hash chooses, which
/// spreads destinations over a fat tree's cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Routing;

impl Switch for Routing {
    #[inline]
    fn handle_frame(&mut self, _now: Time, _ingress: PortId, frame: Frame, ports: &mut Ports<'_>) {
        ports.send_by_destination(frame);
    }
}

/// Equal-cost multi-path: all packets of a flow take the same one of several equal-cost routes.
///
/// Each switch hashes with its own salt; with a common salt, the flows that one switch sends to one
/// port would all take one port at the next switch too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ecmp {
    by_qpn: bool,
}

impl Ecmp {
    /// A flow is identified by addresses and UDP ports.
    pub fn by_flow() -> Ecmp {
        Ecmp { by_qpn: false }
    }

    /// The destination QPN also identifies a flow, as in switches that parse RoCE headers.
    pub fn by_flow_and_qpn() -> Ecmp {
        Ecmp { by_qpn: true }
    }

    fn hash(&self, salt: u64, packet: &Packet) -> u64 {
        let mut hash = TraceHash::new(salt);
        let FlowKey { src, dst, src_port, dst_port } = packet.flow_key();
        for addr in [src, dst] {
            match addr {
                core::net::IpAddr::V4(v4) => hash.bytes(&v4.octets()),
                core::net::IpAddr::V6(v6) => hash.bytes(&v6.octets()),
            }
        }
        hash.word(u64::from(src_port) << 16 | u64::from(dst_port));
        if self.by_qpn {
            hash.bytes(packet.bytes.get(5..8).unwrap_or_default());
        }
        hash.value()
    }
}

impl Switch for Ecmp {
    fn handle_frame(&mut self, _now: Time, _ingress: PortId, frame: Frame, ports: &mut Ports<'_>) {
        let choice = self.hash(u64::from(ports.node().0), ports.packet(&frame));
        let routes = ports.routes(&frame);
        match routes.len() {
            0 => ports.discard(frame),
            count => {
                let port = routes[(choice % count as u64) as usize];
                ports.send(port, frame);
            }
        }
    }
}

/// Packet spraying: packets of a flow are spread over all equal-cost routes.
#[derive(Clone, Copy, Debug)]
pub struct Spray {
    by: SprayBy,
}

#[derive(Clone, Copy, Debug)]
enum SprayBy {
    /// Round robin.
    Turn { next: usize },
    /// The route with the fewest queued bytes.
    Queue,
}

impl Spray {
    /// Routes take turns.
    pub fn round_robin() -> Spray {
        Spray { by: SprayBy::Turn { next: 0 } }
    }

    /// A packet takes the route whose queue is the shortest here.
    pub fn shortest_queue() -> Spray {
        Spray { by: SprayBy::Queue }
    }
}

impl Switch for Spray {
    fn handle_frame(&mut self, _now: Time, _ingress: PortId, frame: Frame, ports: &mut Ports<'_>) {
        let routes = ports.routes(&frame);
        if routes.is_empty() {
            ports.discard(frame);
            return;
        }
        let port = match &mut self.by {
            SprayBy::Turn { next } => {
                *next = next.wrapping_add(1);
                routes[*next % routes.len()]
            }
            SprayBy::Queue => {
                let routes = routes.to_vec();
                let shortest = routes.iter().min_by_key(|port| ports.queued_bytes(**port));
                *shortest.expect("there are routes")
            }
        };
        ports.send(port, frame);
    }
}
