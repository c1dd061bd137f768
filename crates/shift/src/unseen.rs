//! Programs that open libibverbs by name (`dlopen`, as NCCL does). The functions that they get are
//! the library's own, and cannot be interposed. All we can do is say so.
//!
//! Interposing `dlopen` itself would change which directories it searches, because that depends on
//! its caller. But every provider calls back into libibverbs when it opens a device, and finds this
//! library first: that is when we say so. If no provider did, we say so when the program ends.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::log;
use crate::verbs::behind;

/// A device was opened through the interposed function.
static SEEN: AtomicBool = AtomicBool::new(false);
/// The process that is reported if it was not linked to libibverbs: not a forked child.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread is opening a device through the interposed function.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

/// Called by the dynamic linker after all libraries of the program are loaded, before the program
/// starts.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// Runs `open`, which opens a device on behalf of the interposed function.
pub(crate) fn opening<R>(open: impl FnOnce() -> R) -> R {
    SEEN.store(true, Ordering::Relaxed);
    OPENS.set(true);
    let result = open();
    OPENS.set(false);
    result
}

/// libibverbs, if somebody has loaded it.
fn loaded() -> *mut c_void {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a C string; this loads nothing. The handle is kept: either the process is ending, or
    // it has the library anyway.
    unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) }
}

extern "C" fn at_start() {
    if std::env::var_os("BOWLINE_HARDWARE").is_some() && loaded().is_null() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: `at_end` may run whenever the process ends. If it cannot be registered, nothing
        // is reported.
        let _ = unsafe { libc::atexit(at_end) };
    }
}

extern "C" fn at_end() {
    if !SEEN.load(Ordering::Relaxed) && !loaded().is_null() {
        tell();
    }
}

fn tell() {
    static ONCE: Once = Once::new();
    if PROCESS.load(Ordering::Relaxed) == std::process::id() {
        ONCE.call_once(|| {
            log::log().warn(
                "failover: the program loaded libibverbs with dlopen, which cannot be interposed: \
                 it runs without a backup",
            );
        });
    }
}

type InitContext = unsafe extern "C" fn(usize, c_int, usize, usize, u32) -> *mut c_void;

/// Providers call this when they open a device. The call is passed on to libibverbs.
///
/// # Safety
/// As for libibverbs' own function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _verbs_init_and_alloc_context(
    device: usize,
    cmd_fd: c_int,
    size: usize,
    offset: usize,
    driver: u32,
) -> *mut c_void {
    if !OPENS.get() {
        behind(tell);
    }
    let library = loaded();
    if library.is_null() {
        return null_mut();
    }
    // SAFETY: the library is loaded, and the name is a C string.
    let real = unsafe { libc::dlsym(library, c"_verbs_init_and_alloc_context".as_ptr()) };
    // SAFETY: null, or that function of libibverbs.
    let real = unsafe { core::mem::transmute::<*mut c_void, Option<InitContext>>(real) };
    // SAFETY: upheld by the caller.
    real.map_or(null_mut(), |real| unsafe { real(device, cmd_fd, size, offset, driver) })
}
