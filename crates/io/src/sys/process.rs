//! Who this process is, and what it may have.

/// The number by which the kernel names users that a user namespace does not know, unless told
/// otherwise.
const OVERFLOW_UID: u32 = 65_534;

/// The user that this process acts as.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// The number that stands for every user whom this process's user namespace does not know.
pub(crate) fn overflow_uid() -> u32 {
    let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_UID)
}

/// How many descriptors this process may have open.
pub(crate) fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        _ => 0,
    }
}
