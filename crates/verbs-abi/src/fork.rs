//! Behaviour of programs that fork.
//!
//! A child has the parent's memory but not its threads: the lane's thread that drives a device does
//! not exist there, and a lock that a thread held stays locked. So a device belongs to the process
//! that opened it. In a child, every verb on an inherited object fails with `EIO` before it takes a
//! lock, and nothing is sent or freed; devices that the child opens itself work. The parent is not
//! affected: its memory is reached through its own page tables, so registered memory needs no
//! `MADV_DONTFORK`, which is why `ibv_is_fork_initialized` reports that it is not needed.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::handle;

static EPOCH: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn before() {
    handle::hold_for_fork();
}

unsafe extern "C" fn in_parent() {
    handle::release_after_fork();
}

unsafe extern "C" fn in_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    handle::release_after_fork();
}

/// The number of forks between this process and the first that called this.
#[inline]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Registers the fork handlers that distinguish children.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers take and release one lock and count, which is allowed around a fork.
        // Without memory for the handler a child is not told apart, as with other providers.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}
