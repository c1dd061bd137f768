//! Bowline for C programs (`docs/bindings.md`). `bowline.h` is generated from this crate.
//!
//! Every function that can fail returns a status, 0 for success. [`bowline_error_message`] says why
//! the last call of a thread failed. No panic crosses the boundary: it becomes
//! [`BOWLINE_E_INTERNAL`].

#![allow(non_camel_case_types, reason = "names as C programs write them")]

mod comm;
mod error;
mod memory;
mod ops;
mod sdr;
mod work;

pub use comm::*;
pub use error::*;
pub use ops::*;
pub use sdr::*;
pub use work::*;
