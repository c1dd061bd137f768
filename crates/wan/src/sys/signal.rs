//! Waits for signals instead of being interrupted by them.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use super::check;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A child ended, or nothing happened in the time allowed.
    Look,
    /// The process was asked to end, with this signal.
    End(i32),
}

/// Signals that no longer interrupt the process, but stay pending until taken.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Takes over SIGINT, SIGTERM, SIGHUP and SIGCHLD, for the calling thread and those that it
    /// starts; call it before there are others. Programs that are started have them as usual.
    ///
    /// # Errors
    /// If the kernel refuses, which it does not.
    pub fn take_over() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` makes the set, which the others then change and read.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
                libc::sigaddset(&mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()))?;
            set
        };
        Ok(Signals { set })
    }

    /// Waits for one, at most this long.
    pub fn wait(&self, timeout: Duration) -> Woken {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i32::MAX.into()),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: reads a live set and a live time; no information is asked for.
        match unsafe { libc::sigtimedwait(&self.set, ptr::null_mut(), &timeout) } {
            signal @ (libc::SIGINT | libc::SIGTERM | libc::SIGHUP) => Woken::End(signal),
            _ => Woken::Look,
        }
    }
}
