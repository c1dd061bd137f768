//! Two engines, a shim below each, and a wire that the tests control.

mod chain;
mod forged;
mod live;
mod properties;
mod repair;
mod rig;
