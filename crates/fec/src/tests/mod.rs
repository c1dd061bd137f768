//! Two engines, a shim under each, and a wire that the tests own.

mod chain;
mod forged;
mod live;
mod properties;
mod repair;
mod rig;
