//! Programs that open libibverbs by name (`dlopen`, as NCCL does). The functions that they get are
//! the library's own, and cannot be interposed. All we can do is say so when they end.
//!
//! Interposing `dlopen` itself would change which directories it searches, because that depends on
//! its caller.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::log;

/// A device was opened through the interposed function.
static SEEN: AtomicBool = AtomicBool::new(false);
/// The process whose end is reported: not that of a forked child.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Called by the dynamic linker after all libraries of the program are loaded, before the program
/// starts.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

pub(crate) fn note_open() {
    SEEN.store(true, Ordering::Relaxed);
}

fn is_loaded() -> bool {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a C string; this loads nothing. The handle is kept: either the process is ending, or
    // it has the library anyway.
    unsafe { !libc::dlopen(c"libibverbs.so.1".as_ptr(), flags).is_null() }
}

extern "C" fn at_start() {
    if std::env::var_os("BOWLINE_HARDWARE").is_some() && !is_loaded() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: `at_end` may run whenever the process ends. If it cannot be registered, nothing
        // is reported.
        let _ = unsafe { libc::atexit(at_end) };
    }
}

extern "C" fn at_end() {
    let is_it = PROCESS.load(Ordering::Relaxed) == std::process::id();
    if is_it && !SEEN.load(Ordering::Relaxed) && is_loaded() {
        log::log().warn(
            "failover: the program loaded libibverbs with dlopen, which cannot be interposed: it \
             ran without a backup",
        );
    }
}
