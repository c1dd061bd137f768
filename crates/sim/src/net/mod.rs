//! The network: links with queues and faults, switches, and the shapes they make.

mod network;
mod topology;

pub use network::{LinkId, Network, NodeId, SWITCH_LATENCY_NS};
pub use topology::{Topology, dumbbell, fat_tree, pair, rails, ring, star};

#[cfg(test)]
mod topology_tests;
