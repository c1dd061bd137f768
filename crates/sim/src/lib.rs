//! A deterministic world on virtual time, in which the real NIC engine is proven.
//!
//! [`World`] owns hosts with real [`bowline_nic::Nic`] engines, links with queues and faults, and
//! switches; an [`App`] posts work and looks at completions. [`storm`] draws a whole scenario from
//! one seed, runs it through a fault phase and a healed phase, and lets the checkers of [`check`]
//! judge what happened. [`failover_storm`] does so with two NICs per host and connections that move
//! between them, [`sdr_storm`] for SDR and its schemes, [`xp_storm`] for XP, [`multicast_storm`] for
//! groups, [`cm_storm`] for the connection manager, [`collective_storm`] for collective operations. In
//! some seeds an attacker forges packets ([`attack`]). [`experiment`] measures.
//!
//! What this crate may not do: read a clock, draw randomness from anywhere but its seeds, depend
//! on a hash map's order, or know anything private of an engine. The same seed gives the same
//! trace hash, twice and on every machine.

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
