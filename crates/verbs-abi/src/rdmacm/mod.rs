//! librdmacm's ABI over Bowline's connection manager: no kernel module is involved.
//!
//! Every device that a program uses has one open context and one connection manager
//! ([`bowline_device::Connections`]) in `port`. A thread of each turns the manager's events into
//! events of the program's channels (`dispatch`). Identifiers (`id`) are objects as in `handle`. A
//! port's tables are locked while an event is handled and while an identifier is created or
//! destroyed, so that neither sees the other half-done.

pub mod abi;

mod addr;
mod addrinfo;
mod channel;
mod connect;
mod dispatch;
mod endpoint;
mod id;
mod listen;
mod multicast;
mod options;
mod port;
mod qp;
mod resolve;
mod srq;

pub use addrinfo::*;
pub use channel::*;
pub use connect::*;
pub use endpoint::*;
pub use id::*;
pub use listen::*;
pub use multicast::*;
pub use options::*;
pub use qp::*;
pub use resolve::*;
pub use srq::*;
