//! Failover in a model checker: the protocol of `docs/failover.md`, two ends, two rails, a few
//! requests and faults, and every order in which things can happen.
//!
//! The network delivers anything ever sent at any time, any number of times, or never. A rail that
//! dies is one that delivers nothing any more, so what a fault adds is that an end acts on it; it
//! may do so whenever it likes, right or wrong. What the checker finds no harm in is therefore safe
//! for all losses, delays and detections within the scope.

mod check;
mod healing;
mod memory;
mod moving;
mod network;
mod properties;
mod requests;
mod scope;
mod trace;
mod transport;
mod world;

mod breaks;
mod lemmas;
mod modes;
mod reached;
