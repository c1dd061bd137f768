//! The network: links with queues and faults, switches, and the shapes they make.

mod egress;
mod fabric;
mod forwarding;
mod multicast;
mod network;
mod pfc;
mod routes;
mod switch;
mod topology;

pub(crate) use fabric::Fabric;
pub use fabric::SWITCH_LATENCY_NS;
pub use forwarding::{Ecmp, Routing, Spray};
pub use multicast::{IpMulticast, Multicast, Routed};
pub use network::{LinkId, Network, NodeId, PortId};
pub use pfc::{PfcConfig, PfcStats};
pub(crate) use routes::HostIndex;
pub use switch::{Frame, Ports, Switch};
pub use topology::{Topology, dumbbell, fat_tree, leaf_spine, pair, rails, ring, star};

#[cfg(test)]
mod topology_tests;
