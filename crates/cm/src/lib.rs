//! The connection manager (CM) of InfiniBand and RoCE, compatible with librdmacm and the kernel's
//! `rdma_cm`.
//!
//! [`mad`] has the messages: 256-byte management datagrams (MADs) of class 0x07, which travel
//! between the queue pairs 1 of two ports. [`CmManager`] is the state machine: it connects,
//! accepts, rejects and disconnects, retransmits, and answers duplicates. `docs/cm.md` explains its
//! decisions.
//!
//! This crate never reads a clock, does IO, starts a thread, or draws randomness from anywhere but
//! its seed. Time is an argument. No network input makes it panic or use unbounded memory.

#![forbid(unsafe_code)]

pub mod mad;
mod manager;
mod service;
mod timeout;

pub use mad::CommId;
pub use manager::{CmError, CmManager, Config, Counters, Ended, Event, Outgoing};
pub use service::{IpAddressing, PortSpace, ServiceId};
pub use timeout::CmTimeout;
