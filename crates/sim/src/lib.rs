//! A deterministic world on virtual time that runs the real protocol engines.
//!
//! [`World`] owns hosts with real [`bowline_nic::Nic`] engines, links with queues and faults, and
//! switches. An [`App`] posts work and polls completions. [`storm`] draws a whole scenario from one
//! seed, runs it through a fault phase and a healed phase, and lets the checkers of [`check`] judge
//! what happened:
//!
//! ```
//! use bowline_sim::attack::Attacker;
//! use bowline_sim::storm::run_seed;
//!
//! let (first, again) = (run_seed(42, Attacker::Drawn), run_seed(42, Attacker::Drawn));
//! assert!(first.violations.is_empty());
//! assert_eq!(first.trace_hash, again.trace_hash);
//! ```
//!
//! The other storms: [`failover_storm`] has two NICs per host and connections that move between
//! them, [`sdr_storm`] covers SDR and its schemes, [`xp_storm`] XP, [`multicast_storm`] groups,
//! [`cm_storm`] the connection manager, [`collective_storm`] collective operations,
//! [`sealed_storm`] sealed connections. In some seeds an attacker forges packets ([`attack`]).
//! [`experiment`] measures performance.
//!
//! This crate reads no clock, draws randomness only from its seeds, does not depend on the order of
//! a hash map, and uses only the public interface of an engine. The same seed gives the same trace
//! hash, every time and on every machine.

#![forbid(unsafe_code)]

pub mod attack;
pub mod check;
pub mod cm_storm;
pub mod collective_storm;
mod engines;
mod event;
pub mod experiment;
pub mod failover_storm;
mod hash;
pub mod multicast_storm;
pub mod net;
mod packet;
mod rng;
pub mod sdr_storm;
pub mod sealed_storm;
pub mod storm;
mod trace;
pub mod traffic;
mod wheel;
mod world;
pub mod xp_storm;

pub use check::{Sink, Violation};
pub use hash::TraceHash;
pub use packet::Packet;
pub use rng::SimRng;
pub use world::{App, HostConfig, HostId, NicId, RxId, TxId, World, WorldStats};
