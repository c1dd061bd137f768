//! Running when it is time.

use super::check;

/// Lets the calling thread run before all ordinary ones, where that is allowed: a network does not
/// wait for the programs that use it. Whether it was.
pub(crate) fn run_before_programs() -> bool {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads a live `sched_param`; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &priority) }).is_ok()
}
