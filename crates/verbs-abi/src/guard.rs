//! No panic leaves this library: a C program could not survive it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log;

/// Runs a verb; a panic in it is logged and becomes `on_panic`.
#[inline]
pub(crate) fn guard<R>(on_panic: R, verb: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(verb)).unwrap_or_else(|_| {
        log::error("a verb failed inside Bowline, which is a bug; the device may be dead");
        on_panic
    })
}
