//! The device core: what every front end of Bowline is a thin layer over.
//!
//! A [`DeviceSpec`] says what a device is: its address, what carries its packets, how many lanes it
//! has, whether it has a backup. Opened, it is a [`Device`] with the objects of the verbs ([`Pd`],
//! [`Mr`], [`Mw`], [`Cq`], [`Srq`], [`Xrcd`], [`Qp`]), each of which works on all lanes and on the
//! backup:
//!
//! * **Lanes.** Each has an engine, a socket in the address's group with a QPN prefix of its own,
//!   and a core to itself. A queue pair is placed on one lane when it is made; everything else
//!   spans them. Two threads that work on queue pairs of different lanes, with completion queues of
//!   their own, meet on no lock.
//! * **Failover.** With a backup, reliable connections go on there when the first NIC fails, and
//!   come back. The protocol is [`bowline_failover`]'s; this crate gives it threads and the store.
//! * **Other people's NICs.** A device may stand on the system's libibverbs instead
//!   ([`DeviceSpec::verbs()`]). It has no lanes; its objects are the provider's, one to one.
//!   Protocols run there as they do in a lane ([`Host`]). What needs an engine of Bowline's is
//!   refused ([`DeviceError::NeedsSoftNic`]).
//! * **Memory** is an owned [`Buffer`](bowline_nic::Buffer), or memory that somebody else owns:
//!   [`Mr::register_foreign`] is the one place where that is taken on trust.
//!
//! Objects are destroyed by their `destroy`, never by being dropped: front ends differ in when they
//! want that. It holds no protocol, and `unsafe` in `mr.rs` alone.

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
