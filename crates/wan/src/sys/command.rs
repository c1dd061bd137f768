//! Programs with default signal masks that do not outlive us.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::check;

/// Has the program killed when the thread that starts it ends, however that happens; and unblocks
/// the signals that [`Signals`](super::Signals) blocks here.
pub(crate) fn die_with_parent(command: &mut Command) {
    // SAFETY: the closure makes system calls alone, which is safe between fork and exec: it neither
    // allocates nor takes locks.
    unsafe { command.pre_exec(prepare) };
}

fn prepare() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut none = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` makes the set that is then read.
    check(unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    })?;
    Ok(())
}
