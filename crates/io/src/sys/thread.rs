//! Threads that a library starts inside somebody else's program.

use std::io;
use std::mem::MaybeUninit;
use std::thread::JoinHandle;

/// Signals that the kernel raises in the thread whose instruction caused them. The program may have
/// handlers for them, e.g. to print a trace or to map a missing page.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that receives no signals sent to the process.
///
/// The kernel delivers a signal to any thread that does not block it. A program that blocks SIGTERM
/// to read it from a `signalfd` would be killed by it if one of our threads left it unblocked, and
/// a handler that ran on our thread would delay packets and see the wrong thread's state.
pub fn spawn_background<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask, so it never runs with signals unblocked.
    let _blocked = BlockedSignals::new()?;
    std::thread::Builder::new().name(name.into()).spawn(body)
}

/// Blocks all but [`SYNCHRONOUS`] signals in this thread until dropped.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> io::Result<BlockedSignals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: fills a set in, so that it may be read afterwards; cannot fail.
        let mut set: libc::sigset_t = unsafe {
            let _ = libc::sigfillset(set.as_mut_ptr());
            set.assume_init()
        };
        for signal in SYNCHRONOUS {
            // SAFETY: takes a valid signal out of a live set.
            let _ = unsafe { libc::sigdelset(&raw mut set, signal) };
        }
        let mut before = MaybeUninit::uninit();
        // SAFETY: reads a live set, and writes one.
        let code =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        // SAFETY: the call has succeeded and so written the set.
        Ok(BlockedSignals { before: unsafe { before.assume_init() } })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: reads a live set. Setting a mask that was in force cannot fail.
        let _ = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

/// Lets the calling thread run soon after its event or timeout: for threads that others wait for,
/// and that have little to do. Its scheduling class and nice value stay.
pub fn run_promptly() {
    precise_timers();
    short_turns();
}

/// Lets timed waits of the calling thread end within a microsecond of their deadline instead of the
/// usual fifty.
fn precise_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    // Failure leaves the default slack, which only costs precision.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}

/// The kernel's `struct sched_attr`, first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Lets the calling thread run soon after it wakes up, at the price of short time slices.
///
/// A program that spins on its memory never polls and never sleeps. Where it shares a core with the
/// thread that fills that memory, a scheduler with time slices of milliseconds would add these to
/// every message. Linux since 6.12 lets a thread with a shorter slice go first.
///
/// A thread in another scheduling class was put there on purpose, and is left alone.
fn short_turns() {
    let size = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr::default();
    // SAFETY: writes at most `size` bytes into a live `sched_attr`; 0 is the calling thread.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) } == 0;
    if !known || attr.policy != libc::SCHED_OTHER as u32 {
        return;
    }
    // The call sets all fields, so pass the nice value just read.
    attr.size = size;
    attr.runtime_ns = 100_000;
    // SAFETY: reads a live `sched_attr` of the size that it names; 0 is the calling thread.
    // Older kernels ignore the length of a turn, and failure leaves everything as it was.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy and nice value of the calling thread.
    fn class() -> (i32, i32) {
        // SAFETY: both touch no memory; 0 is the calling thread.
        unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) }
    }

    fn blocks(signal: libc::c_int) -> bool {
        let mut set = MaybeUninit::uninit();
        // SAFETY: writes the mask into a set, and looks at it.
        unsafe {
            assert_eq!(
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr()),
                0
            );
            libc::sigismember(set.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_background_thread_takes_no_signals_but_its_own_faults() {
        let seen = spawn_background("bowline-test", || {
            [libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGSEGV, libc::SIGBUS].map(blocks)
        });
        assert_eq!(seen.unwrap().join().unwrap(), [true, true, true, false, false]);
        assert!(!blocks(libc::SIGTERM), "whoever starts one is as before");
    }

    #[test]
    fn a_prompt_thread_keeps_its_nice_value() {
        let kept = std::thread::spawn(|| {
            // SAFETY: touches no memory; 0 is the calling thread.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) }, 0);
            run_promptly();
            class()
        });
        assert_eq!(kept.join().unwrap(), (libc::SCHED_OTHER, 7));
    }

    #[test]
    fn a_prompt_thread_keeps_its_scheduling_class() {
        let kept = std::thread::spawn(|| {
            let normal = libc::sched_param { sched_priority: 0 };
            // SAFETY: reads a live parameter; 0 is the calling thread.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &normal) }, 0);
            run_promptly();
            class().0
        });
        assert_eq!(kept.join().unwrap(), libc::SCHED_BATCH);
    }
}
