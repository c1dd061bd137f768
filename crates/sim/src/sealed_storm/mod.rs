//! The storms of [`crate::storm`], [`crate::failover_storm`], [`crate::xp_storm`] and
//! [`crate::sdr_storm`] with every connection sealed, frequent rekeying, and an on-path attacker.
//!
//! The attacker reads all packets, knows PSNs and keys of regions, and replays, changes, truncates,
//! reflects, redirects and renumbers what it reads, besides forging as an off-path attacker does.
//! All guarantees that hold without it must still hold. Every nonce is recorded: none may be used
//! twice with a key.

mod keys;
mod run;
mod tamper;

pub(crate) use keys::Seals;
pub use run::{run_seed, run_seed_traced};
pub(crate) use tamper::tamper;

#[cfg(test)]
mod tests;
