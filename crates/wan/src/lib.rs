//! A wide-area link between two network namespaces of this machine, transparent to programs: delay,
//! rate, a queue with tail drop, loss and the rest of a [`LinkProfile`](bowline_link::LinkProfile),
//! on kernels without netem.
//!
//! [`Wan`] makes the namespaces, a TUN device in each, and a thread per direction. [`Line`] is one
//! direction of the link and has no IO. The crate uses `unsafe` in `sys` only.

#![deny(unsafe_code)]

mod error;
mod forward;
mod host;
mod line;
mod report;
mod ring;
mod superpacket;
mod sys;
mod vnet;
mod wan;

pub use error::WanError;
pub use host::Host;
pub use line::{Direction, Line, Release};
pub use report::{Counters, DirectionReport, Lateness, Report};
pub use superpacket::{Malformed, Superpacket};
pub use sys::{Signals, Woken};
pub use vnet::{VNET_BYTES, VnetHeader};
pub use wan::{Tap, Wan, WanConfig};
