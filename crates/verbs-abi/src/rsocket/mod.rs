//! Sockets over RDMA, as in `<rdma/rsocket.h>`: streams, compatible with librdmacm on the wire.
//!
//! A socket is an identifier of the connection manager with its own channel, whose descriptor is
//! the socket's ([`socket`]). Once connected it has a [`stream`]: a queue pair, and buffers that
//! the peer writes to. Bytes are copied once at each end ([`transfer`]), or not at all into memory
//! that the peer has mapped ([`iomap`]).

mod calls;
mod iomap;
mod memory;
mod options;
mod poll;
mod socket;
mod stream;
mod transfer;
mod wire;

pub use calls::*;
pub use iomap::*;
pub use options::*;
pub use poll::*;
