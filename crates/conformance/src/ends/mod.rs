//! The kinds of ends.

pub mod agent;
pub mod device;
pub mod groups;
pub mod keys;
pub mod sim;
