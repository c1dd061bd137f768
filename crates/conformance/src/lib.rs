//! One set of RoCEv2 conformance checks for every kind of peer.
//!
//! A check drives two [`End`]s, requester and responder, through the verbs and examines what an
//! application would see: memory, completions, states, events. It does not know what the ends are,
//! so the same check runs
//!
//! - over two engines in the simulator, on virtual time ([`ends::sim`]),
//! - over two devices of this process on UDP loopback ([`ends::device`]),
//! - over a device here and the Linux kernel's rxe in a guest, through a small agent that makes the
//!   verbs calls there ([`ends::agent`]; `lab/rxe` boots the guest).
//!
//! If the same checks pass everywhere, the simulator is faithful and the standard is read as the
//! kernel reads it. Where rxe itself departs from the standard, [`quirks`] says so, and how that
//! was established.
//!
//! This crate contains no protocol and uses only the public interfaces of the others.

#![forbid(unsafe_code)]

pub mod checks;
mod end;
pub mod ends;
mod failure;
mod lab;
pub mod quirks;
mod runner;
mod station;

pub use end::{
    Bridge, BridgePeer, Bridged, Connection, Datagram, End, Maker, MrId, Piece, QpId, QpOptions,
    Region, Send,
};
pub use failure::{Failure, Outcome};
pub use lab::{Clock, Lab, Pair, Qp, Side};
pub use runner::{Case, Check, Profile, Row, cases, group_cases, run_case};
