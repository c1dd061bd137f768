//! For fuzzers alone: what the program reads from others, without the program around it.

use std::io::{self, Cursor};
use std::path::Path;

use crate::dissect::{Capture, dissect};
pub use crate::transfer::fuzzing::recv;

/// Dissects a capture, and prints it nowhere.
pub fn pcap(input: &[u8]) {
    for json in [false, true] {
        let source = Box::new(Cursor::new(input.to_vec()));
        if let Ok(capture) = Capture::new(Path::new("input"), source) {
            let _ = dissect(capture, "input", json, &mut io::sink());
        }
    }
}

/// Reads a question or an answer of discovery.
pub fn discovery(input: &[u8]) {
    let _ = crate::peers::discovery::parse(true, input);
    let _ = crate::peers::discovery::parse(false, input);
}

/// Matches a path against a pattern, which a zero byte divides.
pub fn pattern(input: &[u8]) {
    crate::transfer::fuzzing::pattern(input);
}
