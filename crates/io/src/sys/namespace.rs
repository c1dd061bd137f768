//! Namespaces for tests.

use std::ffi::CString;
use std::path::Path;

/// Moves only the calling thread to a new network namespace; prints why and returns `false` where
/// that is impossible.
pub(crate) fn enter_own_network() -> bool {
    // SAFETY: `unshare` touches no memory, and concerns this thread alone.
    let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !entered {
        println!("skipped: a network namespace takes root");
    }
    entered
}

/// The calling thread's ID, by which others can name its network namespace.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: `gettid` touches no memory.
    unsafe { libc::gettid() }
}

/// Runs `ip` in the calling thread's network namespace; returns `false` if it failed or is missing.
pub(crate) fn ip(arguments: &str) -> bool {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).status();
    done.is_ok_and(|status| status.success())
}

/// Mounts a small in-memory file system at `dir` for the calling thread only; prints why and
/// returns `false` where that is impossible.
pub(crate) fn mount_small_memory(dir: &Path, bytes: usize) -> bool {
    let at = CString::new(dir.to_str().expect("a plain path")).expect("without zeroes");
    let size = CString::new(format!("size={bytes}")).expect("without zeroes");
    // SAFETY: `unshare` concerns this thread alone, and `mount` reads strings that live.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(
                c"tmpfs".as_ptr(),
                at.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                size.as_ptr().cast(),
            ) == 0
    };
    if !mounted {
        println!("skipped: a mount namespace takes root");
    }
    mounted
}

/// Switches only the calling thread to another user; prints why and returns `false` where the
/// process lacks the privilege.
pub(crate) fn become_user(uid: u32) -> bool {
    // SAFETY: the system call itself, unlike the library's function, concerns this thread alone.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } == 0;
    if !done {
        println!("skipped: to act as another user takes root");
    }
    done
}
