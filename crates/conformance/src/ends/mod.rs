//! The kinds of ends there are.

pub mod agent;
pub mod device;
pub mod sim;
