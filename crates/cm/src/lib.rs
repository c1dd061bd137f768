//! The connection manager (CM) of InfiniBand and RoCE, as librdmacm and the kernel's `rdma_cm`
//! speak it.
//!
//! [`mad`] has the messages: 256-byte management datagrams (MADs) of class 0x07, which travel
//! between the queue pairs 1 of two ports. [`CmManager`] is the state machine: it connects,
//! accepts, rejects and disconnects, retransmits, and answers duplicates. `docs/cm.md` says what it
//! decides and why.
//!
//! What this crate may not do: read a clock, do IO, start a thread, or draw randomness from
//! anywhere but its seed. Time is an argument. No bytes of the network make it panic or hold memory
//! without bound.

#![forbid(unsafe_code)]

pub mod mad;
mod manager;
mod service;
mod timeout;

pub use mad::CommId;
pub use manager::{CmError, CmManager, Config, Counters, Ended, Event, Outgoing};
pub use service::{IpAddressing, PortSpace, ServiceId};
pub use timeout::CmTimeout;
