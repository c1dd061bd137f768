//! Failover in a model checker: the protocol of `docs/failover.md`, two ends, two rails, a few
//! requests and faults, and every order in which things can happen.
//!
//! The network delivers anything ever sent at any time, any number of times, or never. A dead rail
//! is one that delivers nothing any more. So a fault only means that an end acts on it, and an end
//! may do so at any time, rightly or wrongly. If the checker finds no violation, the protocol is
//! therefore safe for all losses, delays and detections within the scope.

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
