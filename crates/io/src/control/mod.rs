//! The control socket: reads the counters of this user's live processes on this host, and acts on
//! their devices.
//!
//! Each open device listens on a socket in Linux's abstract namespace, whose name carries user,
//! process and device. The kernel drops the name with the process, so a killed process leaves
//! nothing behind, and listing the names finds every live one. A request is one line; the answer is
//! everything up to the end of the connection.

mod account;
mod client;
mod faults;
mod server;

#[cfg(test)]
mod tests;

pub use account::{account, answer, total_counters};
pub use client::{Peer, ask, live, live_switches};
pub use server::ControlServer;

/// Prefix of the device name under which a switch listens; the switch's address follows.
pub const SWITCH_PREFIX: &str = "switch@";

/// Longest request line.
const MAX_REQUEST: u64 = 4096;
/// Longest answer that a client reads.
const MAX_ANSWER: u64 = 4 << 20;

/// Prefix of all socket names of this user.
fn name_prefix(uid: u32) -> String {
    format!("bowline/{uid}/")
}
