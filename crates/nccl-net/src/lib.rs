//! NCCL's network plug-in interface, versions 8 to 11, over Bowline's soft NIC (`docs/nccl.md`).
//!
//! NCCL loads the library, looks for the newest table that it knows (`ncclNetPlugin_v11` down to
//! `ncclNetPlugin_v8`) and calls through it. [`abi`] has the tables, `calls` the functions in them,
//! `setup` the connection setup, `comm` the layer between a call and a packet, and `link` the
//! transports.
//!
//! # What this crate may not do
//!
//! It implements no wire protocol. No panic leaves it: a panic becomes `ncclInternalError`. The
//! handles that NCCL gets are numbers rather than addresses, so a stale handle is an error.
//! `unsafe` is used only in `calls` and `log`, which use NCCL's pointers, and in `memory`, which
//! registers NCCL's memory.

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
