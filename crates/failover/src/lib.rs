//! Failover of reliable connections across NICs, after SHIFT (`docs/failover.md`).
//!
//! An [`Agent`] looks after the connections of a process that have a spare on a second NIC. When a
//! path dies, it agrees with the peer's agent, by datagrams, to continue over the other rail. It
//! moves the connections there, and brings them back when the first rail is good again. It reads no
//! clock, opens no socket and starts no thread: time is an argument, and the NICs are lent to it.
//!
//! [`mirror`] has the objects of a device with several engines, and [`Supervisor`] its connections,
//! also without IO. The product and the storm run the same code.

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
