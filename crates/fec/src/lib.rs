//! LoWAR: forward error correction under a connection that does not notice.
//!
//! A [`FecShim`] sits between a QP's transport and its port (see [`bowline_nic::Shim`]). On the way
//! out it adds repair packets behind each block of a message; on the way in it restores what was lost
//! before the transport sees a gap. What it cannot restore it passes on, and go-back-N acts. Data
//! packets are not touched, so a peer without the shim works as before.
//!
//! `docs/fec.md` has the wire format, the block model and how two ends find each other. The crate does
//! no IO: time is an argument, memory comes from one bounded [`Pool`] per device, nothing is allocated
//! per packet once that is warm, and no bytes from the network make it panic.

#![forbid(unsafe_code)]

mod control;
mod counters;
mod decode;
mod device;
mod encode;
mod negotiate;
mod params;
mod pool;
mod reorder;
mod shim;
mod symbol;

pub use control::{AutoConfig, Controller, Decision};
pub use counters::{FecCounters, FecSnapshot};
pub use device::Fec;
pub use params::{FecConfig, FecMode, MAX_BLOCK, MAX_LANES, Params, ParamsError};
pub use pool::Pool;
pub use shim::FecShim;

#[cfg(test)]
mod tests;
