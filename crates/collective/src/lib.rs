//! Collective operations over a group of ranks (`docs/collectives.md`).
//!
//! A [`Request`] is compiled for one rank into a [`Schedule`] of sends and folds. An [`Engine`]
//! runs schedules: its inputs are arrived messages and completed sends, its outputs are what to
//! send and what to fold next. A [`Group`] runs an engine over the queue pairs of a
//! [`Rnic`](bowline_nic::Rnic): RC, and XP for operations with [`Bounds`].
//!
//! This crate uses no clock, socket, thread, randomness or `unsafe`. All ranks get bit-identical
//! results, whatever the order in which messages arrive.

#![forbid(unsafe_code)]

mod algorithm;
mod bounds;
mod encoding;
pub mod engine;
mod fold;
pub mod group;
mod hosts;
mod replay;
mod request;
pub mod schedule;
pub mod timeout;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use bounds::{Bounds, Deadline, Missing, Recovery, Report};
pub use bowline_codes::reduce::{DataType, ReduceOp};
pub use encoding::Encoding;
pub use engine::{Cause, Engine, EngineConfig, Failure, OpId};
pub use fold::{Contribution, fold, fold_partial};
pub use group::{
    CastEnd, CastOffer, ExpressInfo, Group, GroupConfig, GroupError, LinkInfo, Memory, Piece,
    SdrEnd, SdrScheme, UnknownScheme,
};
pub use hosts::Hosts;
pub use replay::{replay_allreduce, replay_two_level};
pub use request::{InvalidRequest, Operation, Request};
pub use schedule::Schedule;

/// The number of a member of a group, from 0.
pub type Rank = u32;

/// Maximum number of ranks in a group: an immediate has 16 bits for a rank.
pub const MAX_RANKS: u32 = 1 << 16;

/// The peer number that stands for the messages that a rank multicasts to all others. Sends and
/// messages use it like a rank.
pub const fn cast_of(rank: Rank, ranks: u32) -> Rank {
    ranks + rank
}
