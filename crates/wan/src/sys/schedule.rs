//! Real-time scheduling.

use super::check;

/// Lets the calling thread run before all ordinary ones, where that is permitted: a network does
/// not wait for the programs that use it. Returns whether it was.
pub(crate) fn run_before_programs() -> bool {
    // SAFETY: `sched_param` is a plain C struct for which zeroes are valid. musl's has more fields.
    let mut priority: libc::sched_param = unsafe { std::mem::zeroed() };
    priority.sched_priority = 1;
    // SAFETY: reads a live `sched_param`; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &priority) }).is_ok()
}
