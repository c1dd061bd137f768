//! The model of a link: loss, rate, delay, queue, ECN marking, and their text form.
//!
//! [`Link`] is one direction of a cable. It decides for each packet whether and when it arrives
//! ([`Fate`]), and never holds the packet itself. [`LinkProfile`] is the text form, as in
//! `rate=1Gbps,delay=20ms,loss=0.1%,queue=1bdp`. The impairment middleware of `io`, `bowline wan`
//! and the simulator all run this model, so that a profile means the same everywhere.
//!
//! This crate never reads a clock, does IO, starts a thread, or draws randomness from anywhere but
//! a seed. Time is an argument.

#![forbid(unsafe_code)]

mod config;
mod faults;
mod link;
mod loss;
mod prob;
mod profile;
mod stats;
mod time;
mod transmitter;
pub mod units;

#[cfg(test)]
mod tests;

pub use config::{Ecn, LinkConfig};
pub use faults::{Corruption, Damage, Faults};
pub use link::{Arrival, Fate, Link};
pub use loss::{Bursts, GilbertElliott, Loss};
pub use prob::Prob;
pub use profile::{LinkProfile, ParseLinkError};
pub use stats::LinkStats;
pub use time::Time;
