//! Sockets over RDMA, as `<rdma/rsocket.h>` has them: streams, on the wire as librdmacm's own.
//!
//! A socket is an identifier of the connection manager with a channel of its own, whose descriptor
//! is the socket's ([`socket`]). Once connected it has a [`stream`]: a queue pair, and buffers that
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
