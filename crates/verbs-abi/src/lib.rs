//! libibverbs' ABI over Bowline's soft NIC: unmodified verbs programs run with no RDMA hardware,
//! kernel module or root.
//!
//! The library comes as two products (see `preload`): a preload library with the public symbols
//! only, and a `libibverbs.so.1` with symbol versions, for programs that look symbols up by
//! version. It is configured by environment variables, which the README lists.
//!
//! Every open device is one lane with one NIC ([`bowline_io::Lane`], [`bowline_nic::Nic`]): polling
//! drives it inline, and its thread takes over when nobody polls. Objects are single allocations
//! that begin with the structure of `<infiniband/verbs.h>` ([`abi`]). Unsupported operations fail
//! at once with `EOPNOTSUPP`. No panic leaves the library.
//!
//! This crate contains no protocol. All its `unsafe` is at the boundary to C programs.

pub use bowline_verbs_types as abi;

mod acks;
mod ah;
mod async_event;
mod buf;
mod channel;
mod context;
mod cq;
mod device;
mod dm;
mod dmah;
mod domain;
mod env;
mod errno;
mod files;
mod fork;
mod gid;
mod guard;
mod handle;
mod import;
mod log;
mod mcast;
mod modify;
mod mr;
mod mw;
mod ops;
mod pd;
mod poll;
mod poll_ex;
mod post;
mod qp;
mod query;
pub mod rdmacm;
mod report;
mod rsocket;
mod spec;
mod srq;
mod strings;
mod sys;
mod table;
mod unopened;
mod unsupported;
mod wr;
mod xrcd;

/// The exported functions, by the names of the header.
pub mod verbs {
    pub use crate::ah::*;
    pub use crate::async_event::*;
    pub use crate::buf::*;
    pub use crate::channel::*;
    pub use crate::context::*;
    pub use crate::cq::*;
    pub use crate::device::*;
    pub use crate::dmah::*;
    pub use crate::files::sysfs::*;
    pub use crate::gid::*;
    pub use crate::import::*;
    pub use crate::mcast::*;
    pub use crate::modify::*;
    pub use crate::mr::*;
    pub use crate::pd::*;
    pub use crate::qp::*;
    pub use crate::query::*;
    pub use crate::rdmacm::*;
    pub use crate::rsocket::*;
    pub use crate::srq::*;
    pub use crate::strings::*;
    pub use crate::table::*;
    pub use crate::unsupported::*;
}
