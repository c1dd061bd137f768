//! Programs that open libibverbs by name (`dlopen`, as NCCL does). The functions that they find so
//! are the library's own, and nobody stands before them. It can only be said, when they end.
//!
//! To stand before `dlopen` itself would change which directories it looks in: it goes by who calls
//! it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::log;

/// A device was opened by the name that is stood before.
static SEEN: AtomicBool = AtomicBool::new(false);
/// Whose end is told of: not that of a child which was forked.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Called by the linker when all that a program is linked with is there, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

pub(crate) fn note_open() {
    SEEN.store(true, Ordering::Relaxed);
}

fn is_loaded() -> bool {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a C string; nothing is loaded by this. The handle is kept: the process ends, or has
    // the library anyway.
    unsafe { !libc::dlopen(c"libibverbs.so.1".as_ptr(), flags).is_null() }
}

extern "C" fn at_start() {
    if std::env::var_os("BOWLINE_HARDWARE").is_some() && !is_loaded() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: `at_end` may run whenever the process ends. Without room for it nothing is said.
        let _ = unsafe { libc::atexit(at_end) };
    }
}

extern "C" fn at_end() {
    let is_it = PROCESS.load(Ordering::Relaxed) == std::process::id();
    if is_it && !SEEN.load(Ordering::Relaxed) && is_loaded() {
        log::log().warn(
            "failover: the program opened libibverbs by itself (dlopen), which cannot be stood \
             before: it ran without a backup",
        );
    }
}
