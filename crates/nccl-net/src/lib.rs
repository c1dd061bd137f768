//! NCCL's network plug-in interface, versions 8 to 11, over Bowline's soft NIC (`docs/nccl.md`).
//!
//! NCCL loads the library, looks for the newest table that it knows (`ncclNetPlugin_v11` down to
//! `ncclNetPlugin_v8`) and calls through it. [`abi`] has the tables, `calls` the functions in them,
//! `setup` how two ends find each other, `comm` what is between a call and a packet, and `link`
//! the transports.
//!
//! # What this crate may not do
//!
//! It holds no protocol of the wire. No panic leaves it: a panic becomes `ncclInternalError`. What
//! NCCL gets from it are numbers and not addresses, so a handle that is stale is an error. `unsafe`
//! is in `calls` and `log`, where NCCL's pointers are used, and in `memory`, where NCCL's memory is
//! registered.

pub mod abi;
mod calls;
mod comm;
mod config;
mod devices;
mod link;
mod log;
mod memory;
mod objects;
mod setup;
mod status;
pub mod tables;
