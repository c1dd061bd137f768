//! A way to talk to live processes of this user on this host: to read their counters, and to act on
//! their devices.
//!
//! Each open device listens on a socket in Linux's abstract namespace, whose name carries user,
//! process and device. The kernel forgets the name with the process, so nothing is left behind by a
//! process that was killed, and looking for names is all it takes to find who is alive. A request
//! is one line, the answer is all that comes back before the connection closes.

mod account;
mod client;
mod faults;
mod server;

#[cfg(test)]
mod tests;

pub use account::{account, answer, total_counters};
pub use client::{Peer, ask, live, live_switches};
pub use server::ControlServer;

/// What the name of a switch begins with that listens as devices do: its address follows.
pub const SWITCH_PREFIX: &str = "switch@";

/// Longest request line.
const MAX_REQUEST: u64 = 4096;
/// Longest answer that a client reads.
const MAX_ANSWER: u64 = 4 << 20;

/// What all names of this user begin with.
fn name_prefix(uid: u32) -> String {
    format!("bowline/{uid}/")
}
