//! The structures of `<infiniband/verbs.h>`, as rdma-core lays them out.
//!
//! Names are those of the header, so that both can be read side by side. Enumerations are plain
//! integers: a program may put any value into them. `layout` asserts sizes and offsets when this
//! crate is compiled, and lists them for a check against an installed header.
//!
//! Two crates stand on them: `bowline-verbs-abi` is a libibverbs, and `bowline-ibverbs` calls one.

#![allow(non_camel_case_types, missing_docs)]

mod context;
mod cq;
mod layout;
mod object;
mod qp;
mod query;
mod srq;
mod wr;

pub use context::*;
pub use cq::*;
pub use layout::{LAYOUT, LayoutEntry};
pub use object::*;
pub use qp::*;
pub use query::*;
pub use srq::*;
pub use wr::*;

use core::ffi::{c_int, c_void};

/// A verb that is not supported and answers with an error number. Callers pass arguments, which it
/// does not look at.
pub type NoVerb = unsafe extern "C" fn() -> c_int;
/// A verb that is not supported and answers with a null pointer and `errno`.
pub type NoObject = unsafe extern "C" fn() -> *mut c_void;
