//! Creates namespaces.

use std::io;

use rustix::thread::UnshareFlags;

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: file descriptors stay shared with the other threads; only the network changes.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Makes the process root in its own user namespace, where it may create networks.
///
/// The kernel refuses this to a process with several threads.
pub(crate) fn enter_user_namespace() -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    // SAFETY: file descriptors stay as they are; only the credentials' namespace changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // Without this the kernel does not let an unprivileged process map a group
    // (user_namespaces(7)).
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}
