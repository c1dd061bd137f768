//! Measurements in virtual time.

mod goodput;

pub use goodput::{Goodput, GoodputConfig, goodput};

#[cfg(test)]
mod goodput_tests;
