//! Packet protection: every packet of a connection encrypted and authenticated (`docs/sealed.md`).
//!
//! A [`SessionSecret`] is agreed at setup. Each queue pair connected under it gets its own
//! [`PacketSeal`]: keys for each direction, which roll over by themselves, a counter that no two
//! packets share, and an anti-replay window. [`Nic::seal_qp`] installs it.
//!
//! No clock, IO, randomness or thread: secrets and time are arguments. `unsafe` is in
//! `libaegis.rs` alone. Packets from the network create no state beyond a fixed number of keys.
//!
//! [`Nic::seal_qp`]: bowline_nic::Nic::seal_qp

#![deny(unsafe_code)]

mod config;
mod libaegis;
mod opener;
mod recorder;
mod schedule;
mod sealer;
mod secret;
mod suite;
mod window;

use bowline_nic::{PacketSeal, Time};

pub use config::{Rollover, SealConfig};
pub use opener::Opener;
pub use recorder::{NonceLog, NonceRecorder};
pub use sealer::Sealer;
pub use secret::{Role, SessionSecret};
pub use suite::Suite;

use schedule::Schedule;

/// Bytes that sealing adds to a packet, besides the ICRC field that it keeps.
pub const OVERHEAD: usize = bowline_wire::SealedHeader::LEN + bowline_wire::SEALED_TAG_LEN;

/// Protection for the queue pair with this number in the session. Both ends connect their queue
/// pairs in the same order and number them accordingly; a number is used once per session.
pub fn seal(
    secret: &SessionSecret,
    qp: u64,
    role: Role,
    config: &SealConfig,
    now: Time,
) -> PacketSeal {
    PacketSeal {
        sealer: Box::new(Sealer::new(Schedule::new(secret, qp, role, config.suite), config, now)),
        opener: Box::new(Opener::new(Schedule::new(secret, qp, role.peer(), config.suite), config)),
    }
}

#[cfg(test)]
mod tests;
