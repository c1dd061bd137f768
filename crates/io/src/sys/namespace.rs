//! Network namespaces for tests.

/// Takes the calling thread, and no other, to a network of its own; `false`, with a word of why, where
/// that cannot be had.
pub(crate) fn enter_own_network() -> bool {
    // SAFETY: `unshare` touches no memory, and concerns this thread alone.
    let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !entered {
        println!("skipped: a network namespace takes root");
    }
    entered
}

/// The calling thread's number, by which others can name its network.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: `gettid` touches no memory.
    unsafe { libc::gettid() }
}

/// Runs `ip`, on the network of the calling thread; `false` if it failed or is not there.
pub(crate) fn ip(arguments: &str) -> bool {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).status();
    done.is_ok_and(|status| status.success())
}
