//! Other people's NICs: RoCE devices of the system's libibverbs, in the engine's own nouns.
//!
//! The library is loaded at run time and never linked ([`library_path`] says which), so that a
//! program without RDMA hardware needs none. A [`Context`] is an open device; from it come [`Pd`],
//! [`Mr`], [`Mw`], [`Cq`], [`Srq`] and [`Qp`], one verbs object each. Work requests and completions
//! are [`bowline_nic`]'s, translated one to one; what a provider has no word for is refused.
//!
//! Every object holds what it stands on, and is destroyed when it is dropped: no order of drops
//! leaves a provider with a dangling pointer. One thread of each context takes its completion
//! events and asynchronous events, and hands them on.
//!
//! This crate holds no protocol. All its `unsafe` is about calling the library.

mod address;
mod context;
mod cq;
mod error;
mod library;
mod list;
mod mr;
mod nic;
mod pd;
mod post;
mod qp;
mod quirks;
mod srq;
mod watch;
mod wc;

pub use address::{ParseNameError, VerbsName, address, gid};
pub use context::{Caps, Context};
pub use cq::Cq;
pub use error::VerbsError;
pub use library::{Library, library_path, provide};
pub use list::{ListedDevice, ListedPort, list};
pub use mr::{Mr, Mw};
pub use nic::VerbsNic;
pub use pd::Pd;
pub use qp::{Qp, QpCaps};
pub use srq::Srq;
