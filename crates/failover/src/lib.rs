//! Failover of reliable connections across NICs, after SHIFT (`docs/failover.md`).
//!
//! An [`Agent`] manages the connections of a process that have a spare on a second NIC. When a path
//! dies, it agrees with the peer's agent, by datagrams, to continue over the other rail. It moves
//! the connections there, and moves them back when the first rail works again. It reads no clock,
//! opens no socket and starts no thread: time is an argument, and its owner lends it the NICs.
//!
//! [`mirror`] provides the objects of a device with several engines, and [`Supervisor`] manages its
//! connections. Neither does IO. The product and the simulator's random fault scenarios run the
//! same code.

mod agent;
mod config;
mod connection;
mod control;
mod counters;
mod entry;
mod keys;
mod message;
pub mod mirror;
mod moving;
mod nic;
mod probe;
mod rail;
mod report;
mod returning;
mod supervisor;

#[cfg(test)]
mod tests;

pub use agent::{Agent, ConnectionId};
pub use config::{Config, Mode, UnknownMode};
pub use counters::Counters;
pub use entry::{BadEntry, Entry};
pub use nic::{Body, RailNic};
pub use rail::{Rail, Rails};
pub use report::{Cause, Outcome, Report};
pub use supervisor::{Life, Supervisor};
