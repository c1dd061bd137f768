//! What fuzzers call: bytes of the network, or of a file from somebody else, into the code that takes them.
//!
//! Each target makes what it needs, plays the input as a script against it, and checks that nothing panics,
//! that memory which was not offered stays as it was, and that what is held stays bounded. `fuzz/` drives
//! them with libFuzzer; the tests here replay the seeds in `fuzz/seeds`, with overflow checks as well.

#![forbid(unsafe_code)]

mod cm;
mod failover;
mod fec;
mod host;
mod sdr;
mod setup;
mod store;
mod xp;

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 10] = [
    ("xp", xp::run),
    ("sdr", sdr::plain),
    ("reliable", sdr::reliable),
    ("fec", fec::run),
    ("failover", failover::run),
    ("cm", cm::run),
    ("setup", setup::run),
    ("store", store::run),
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
