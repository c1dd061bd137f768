//! System calls, each behind a safe function. With the UDP port's message rings this is all the
//! `unsafe` there is in the crate.

#![allow(unsafe_code)]

mod bpf;
mod event;
mod filter;
mod interface;
mod lock;
#[cfg(test)]
pub(crate) mod namespace;
mod neighbour;
mod netlink;
mod poll;
mod shared;
mod socket;
mod timer;
mod xsk;

use std::io;

pub(crate) use bpf::{Attached, Instruction, SocketMap, XdpProgram};
pub(crate) use event::EventFd;
pub(crate) use filter::attach_group_program;
pub(crate) use interface::{InterfaceQuery, interface_of};
pub use interface::{LocalAddress, local_address, local_addresses};
pub(crate) use lock::{effective_uid, is_byte_locked, try_lock_byte, unlock_byte};
pub(crate) use neighbour::{Hop, Neighbours};
pub use netlink::LinkNews;
pub(crate) use poll::{PollFd, poll};
pub(crate) use shared::SharedWords;
pub(crate) use socket::{SockAddr, UdpSocketBuilder, get_int, peer_uid, set_int};
pub(crate) use timer::TimerFd;
pub(crate) use xsk::{BindMode, MAX_FRAME, XdpSocket};

/// Turns the usual `-1` of a system call into the error it set.
fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Lets the calling thread run soon after what it waits for has come, or its time: for threads that
/// others wait for, and that have little to do.
pub fn run_promptly() {
    precise_timers();
    short_turns();
}

/// Lets timed waits of the calling thread end within a microsecond of their time rather than the
/// usual fifty.
fn precise_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    // Failure leaves the default slack, which only costs precision.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}

/// Lets the calling thread run soon after it wakes up, at the price of running in short turns.
///
/// A program that spins on its memory never polls and never sleeps. Where it shares a core with the
/// thread that fills that memory, a scheduler that lets everybody finish a turn of milliseconds
/// would add these to every message. Linux since 6.12 lets a thread with shorter turns go first.
fn short_turns() {
    // The kernel's `struct sched_attr`, first version.
    #[repr(C)]
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
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime_ns: 100_000,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: reads a live `sched_attr` of the size that it names; 0 is the calling thread.
    // Older kernels ignore the length of a turn, and failure leaves everything as it was.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
