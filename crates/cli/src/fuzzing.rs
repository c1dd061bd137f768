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
