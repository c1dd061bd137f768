//! The storms of [`crate::storm`], [`crate::failover_storm`], [`crate::xp_storm`] and
//! [`crate::sdr_storm`] with every connection sealed, keys that change all the time, and an
//! attacker on the path.
//!
//! The attacker reads all packets, knows PSNs and keys of regions, and repeats, changes, truncates,
//! reflects, redirects and renumbers what it reads, beside the forgeries of an attacker off the
//! path. All that is promised without it must hold. Every nonce is recorded: none may be used twice
//! with a key.

mod keys;
mod run;
mod tamper;

pub(crate) use keys::Seals;
pub use run::{run_seed, run_seed_traced};
pub(crate) use tamper::tamper;

#[cfg(test)]
mod tests;
