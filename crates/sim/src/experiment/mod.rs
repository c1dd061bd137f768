//! Measurements in virtual time.

mod completion;
mod fig10;
mod goodput;

pub use completion::{CompletionConfig, CompletionTime, completion};
pub use fig10::{Fig10Config, Fig10Row, SCHEMES, fig10, model};
pub use goodput::{Goodput, GoodputConfig, goodput};

#[cfg(test)]
mod goodput_tests;
