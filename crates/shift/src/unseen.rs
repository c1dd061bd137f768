//! Programs that open libibverbs by name (`dlopen`, as NCCL does). The functions that they find so
//! are the library's own, and nobody stands before them. It can only be said.
//!
//! To stand before `dlopen` itself would change which directories it looks in: it goes by who calls
//! it. But every provider calls back into libibverbs when it opens a device, and finds this library
//! first: that is when it is said. If no provider did, it is said when the program ends.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::log;
use crate::verbs::behind;

/// A device was opened by the name that is stood before.
static SEEN: AtomicBool = AtomicBool::new(false);
/// Of whom it is said, if it was not linked to libibverbs: not of a child which was forked.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread opens a device by the name that is stood before.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

/// Called by the linker when all that a program is linked with is there, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// Opens a device by the name that is stood before, and what stands behind it.
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
    // SAFETY: a C string; nothing is loaded by this. The handle is kept: the process ends, or has
    // the library anyway.
    unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) }
}

extern "C" fn at_start() {
    if std::env::var_os("BOWLINE_HARDWARE").is_some() && loaded().is_null() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: `at_end` may run whenever the process ends. Without room for it nothing is said.
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
                "failover: the program opened libibverbs by itself (dlopen), which cannot be \
                 stood before: it runs without a backup",
            );
        });
    }
}

type InitContext = unsafe extern "C" fn(usize, c_int, usize, usize, u32) -> *mut c_void;

/// What a provider calls when it opens a device. It is libibverbs' own, and handed on.
///
/// # Safety
/// As libibverbs'.
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
    // SAFETY: a library that is loaded, and a C string.
    let real = unsafe { libc::dlsym(library, c"_verbs_init_and_alloc_context".as_ptr()) };
    // SAFETY: null, or that function of libibverbs.
    let real = unsafe { core::mem::transmute::<*mut c_void, Option<InitContext>>(real) };
    // SAFETY: the caller's promise.
    real.map_or(null_mut(), |real| unsafe { real(device, cmd_fd, size, offset, driver) })
}
