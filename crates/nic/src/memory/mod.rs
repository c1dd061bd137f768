//! Registered memory.
pub(crate) mod raw;
pub use raw::{Buffer, Region, Segment};
