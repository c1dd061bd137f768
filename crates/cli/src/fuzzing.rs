//! Entry points for fuzzers: the program's parsers of untrusted input.

use std::io::{self, Cursor};
use std::path::Path;

use crate::dissect::{Capture, dissect};
pub use crate::transfer::fuzzing::recv;

/// Dissects a capture and discards the output.
pub fn pcap(input: &[u8]) {
    for json in [false, true] {
        let source = Box::new(Cursor::new(input.to_vec()));
        if let Ok(capture) = Capture::new(Path::new("input"), source) {
            let _ = dissect(capture, "input", json, &mut io::sink());
        }
    }
}

/// Parses a discovery question or answer.
pub fn discovery(input: &[u8]) {
    let _ = crate::peers::discovery::parse(true, input);
    let _ = crate::peers::discovery::parse(false, input);
}

/// Matches a path against a pattern; a zero byte separates the two.
pub fn pattern(input: &[u8]) {
    crate::transfer::fuzzing::pattern(input);
}
