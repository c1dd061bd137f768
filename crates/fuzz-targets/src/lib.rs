//! What fuzzers call: bytes from the network, a file or shared memory go into the code that takes
//! them.
//!
//! Each target sets up what it needs, plays the input as a script against it, and checks that
//! nothing panics, that memory which was not offered is unchanged, and that memory use stays
//! limited. `fuzz/` drives them with libFuzzer; the tests here replay the seeds in `fuzz/seeds`,
//! with overflow checks.

#![forbid(unsafe_code)]

mod cm;
mod failover;
mod fec;
mod host;
mod peers;
mod sdr;
mod sealed;
mod setup;
mod store;
mod switch;
mod xp;

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 15] = [
    ("xp", xp::run),
    ("sealed", sealed::run),
    ("sdr", sdr::plain),
    ("reliable", sdr::reliable),
    ("fec", fec::run),
    ("failover", failover::run),
    ("cm", cm::run),
    ("setup", setup::run),
    ("ring", bowline_io::play_hostile_ring),
    ("peers", peers::run),
    ("store", store::run),
    ("switch", switch::run),
    ("tables", bowline::multicast::play_message),
    ("recv", bowline_cli::fuzzing::recv),
    ("pcap", bowline_cli::fuzzing::pcap),
];

/// Runs the target of that name.
///
/// # Panics
/// If there is none, or it finds a mistake.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, target) = target.unwrap_or_else(|| panic!("there is no target {name}"));
    target(input);
}
