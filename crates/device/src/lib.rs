//! The device core. All front ends of Bowline are thin layers over it.
//!
//! A [`DeviceSpec`] describes a device: its address, its packet transport, its number of lanes, and
//! its backup, if any. Opening it returns a [`Device`] with the objects of the verbs ([`Pd`],
//! [`Mr`], [`Mw`], [`Cq`], [`Srq`], [`Xrcd`], [`Qp`]), each of which works on all lanes and on the
//! backup:
//!
//! * **Lanes.** Each lane has its own engine and core, and a socket in the address's group with its
//!   own QPN prefix. A queue pair is placed on one lane when it is created; everything else spans
//!   all lanes. Two threads that work on queue pairs of different lanes, with separate completion
//!   queues, share no lock.
//! * **Failover.** With a backup, reliable connections continue there when the first NIC fails, and
//!   return later. The protocol is in [`bowline_failover`]; this crate adds threads and the store.
//! * **Hardware NICs.** A device may use the system's libibverbs instead ([`DeviceSpec::verbs()`]).
//!   It has no lanes, and each of its objects is one of the provider's. Protocols run there as they
//!   do in a lane ([`Host`]). Operations that need one of Bowline's engines fail
//!   ([`DeviceError::NeedsSoftNic`]).
//! * **Memory** is an owned [`Buffer`](bowline_nic::Buffer), or memory that the caller owns:
//!   [`Mr::register_foreign`] is the one place that has to trust the caller.
//!
//! Objects are destroyed by their `destroy`, never by being dropped, because front ends differ in
//! when they want that. The crate contains no protocol, and `unsafe` only in `mr.rs`.

#![deny(unsafe_code)]

mod backend;
mod connections;
mod cq;
mod device;
mod driver;
mod engines;
mod error;
mod events;
mod failover;
mod groups;
mod host;
mod linger;
mod log;
mod mr;
pub mod multicast;
mod mw;
mod open;
mod pd;
mod placement;
mod qp;
mod random;
mod spec;
mod srq;
mod turn;
mod verbs;
mod xrcd;

pub use bowline_failover::mirror::{MAX_LANES, Place};
pub use bowline_failover::{Mode, Rail};
pub use bowline_ibverbs::{Caps as VerbsCaps, ParseNameError, VerbsError, VerbsName};
pub use connections::{ConnectionEvent, Connections};
pub use cq::Cq;
pub use device::Device;
pub use error::DeviceError;
pub use failover::{Account, Directory, Tally, describe, queue_pair_key, region_key};
pub use host::Host;
pub use log::{Log, Severity};
pub use mr::Mr;
pub use mw::Mw;
pub use open::Opened;
pub use pd::Pd;
pub use qp::{Qp, QpRequest};
pub use random::random_bytes;
pub use spec::{BackupSpec, DeviceSpec, LaneCount, Limits, ParseLaneCountError};
pub use srq::Srq;
pub use xrcd::Xrcd;
