//! What the benches in Rust share: bars and samples; and what they ask of the kernel and the CPU: a
//! core of their own, the time they ran, bare UDP sockets, copies past the caches.

pub mod bars;
pub mod copy;
pub mod samples;
pub mod tcp;
pub mod udp;

use std::io;

/// Keeps this thread on one CPU.
///
/// # Errors
/// If there is no such CPU, or it is not for this process.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: a zeroed set is an empty one, and `CPU_SET` ignores what does not fit into it.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How long this thread has run so far, in seconds: on a busy machine the time during which others
/// had the CPU says nothing about the code.
pub fn cpu_time_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// How long all threads of this process have run so far, in user space and in the kernel, in
/// seconds.
pub fn process_cpu_s() -> f64 {
    // SAFETY: an all-zero `rusage` is valid, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
