//! Warns when a program that was run on Bowline did not use it.
//!
//! Programs that find no suitable device silently use another transport. Under `bowline run`, a
//! program that has loaded libibverbs and ends without having opened a device is reported.

use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::guard::guard;
use crate::{env, log, sys};

/// In memory shared with forked children: some programs leave their work to them.
static OPENED: OnceLock<&'static AtomicBool> = OnceLock::new();

/// A device was opened, or opening it failed, which was reported.
pub(crate) fn opened() {
    if let Some(opened) = OPENED.get() {
        opened.store(true, Ordering::Relaxed);
    }
}

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    guard((), || {
        if env::is_started_by_run()
            && let Some(flag) = sys::shared_flag()
            && OPENED.set(flag).is_ok()
        {
            // SAFETY: `at_exit` may run whenever the process ends.
            let _ = unsafe { libc::atexit(at_exit) };
        }
    });
}

extern "C" fn at_exit() {
    guard((), || {
        // A forked child is not the program that was started.
        let opened = OPENED.get().is_none_or(|opened| opened.load(Ordering::Relaxed));
        if !opened && env::is_started_by_run() && loads_verbs() {
            log::warn(
                "the program has loaded libibverbs and opened no device: if it moved data, then by another way",
            );
        }
    });
}

/// Whether the process has the system's libibverbs as well.
fn loads_verbs() -> bool {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader hands in an object with a name, and the flag below.
        unsafe {
            let name = (*info).dlpi_name;
            let is_verbs = !name.is_null()
                && CStr::from_ptr(name).to_bytes().windows(10).any(|part| part == b"libibverbs");
            *found.cast::<bool>() |= is_verbs;
        }
        0
    }
    let mut found = false;
    // SAFETY: the function writes to a flag that lives until the call is over.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}
