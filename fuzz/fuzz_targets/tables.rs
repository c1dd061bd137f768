//! The target of this name in `bowline-fuzz-targets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bowline_fuzz_targets::run("tables", data));
