//! The network: links with queues and faults, switches, and the shapes they make.

mod fault;
mod link;
mod network;
mod topology;

pub use fault::{Bursts, Corruption, Faults, GilbertElliott, Loss};
pub use link::{Ecn, Fate, Link, LinkConfig, LinkStats};
pub use network::{LinkId, Network, NodeId, SWITCH_LATENCY_NS};
pub use topology::{Topology, dumbbell, fat_tree, pair, rails, ring, star};

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod topology_tests;
