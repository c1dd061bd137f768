//! Two lanes as one: what a program has on one NIC has a counterpart on another, and connections go
//! on there when the first fails.
//!
//! The protocol is that of [`bowline_failover`]. This crate gives it what it lacks by design: lanes to
//! run on, threads, the store in which peers find each other's backups, and a place in the program's
//! verbs.
//!
//! * **Objects** ([`Rails::shadow_pd`] and its kin) get a counterpart on the backup lane as part of the
//!   control verb that makes them. It takes microseconds, and what cannot be had is done without: a
//!   connection then has no backup.
//! * **Posting** ([`Rails::post`]) goes to where the connection was last seen, and follows it when it
//!   has gone.
//! * **Polling** asks the mirror of a completion queue only while some connection is away
//!   ([`CqMirror::poll`]).
//! * **Threads**: one runs the agent and nothing that could make it wait; another talks to the store.
//!
//! It uses plain identifiers of [`bowline_nic`], so that the verbs library and the facade can share it.

#![forbid(unsafe_code)]

mod books;
mod connection;
mod cq;
mod directory;
mod driver;
mod error;
mod log;
mod objects;
mod rails;
mod srq;

pub use books::Account;
pub use connection::Connection;
pub use cq::CqMirror;
pub use error::RailsError;
pub use log::{Log, Severity};
pub use rails::{Options, Rails};
pub use srq::SrqMirror;

pub use bowline_failover::{Mode, Rail};
