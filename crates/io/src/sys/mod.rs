//! System calls, each behind a safe function. With the UDP port's message rings this is all the
//! `unsafe` there is in the crate.

#![allow(unsafe_code)]

mod event;
mod filter;
mod interface;
mod lock;
mod poll;
mod socket;

use std::io;

pub(crate) use event::EventFd;
pub(crate) use filter::attach_group_program;
pub(crate) use interface::interface_of;
pub use interface::{LocalAddress, local_addresses};
pub(crate) use lock::{effective_uid, is_byte_locked, try_lock_byte, unlock_byte};
pub(crate) use poll::{PollFd, poll};
pub(crate) use socket::{SockAddr, UdpSocketBuilder, peer_uid, set_int};

/// Turns the usual `-1` of a system call into the error it set.
fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Lets timed waits of the calling thread end within a microsecond of their time rather than the
/// usual fifty.
pub(crate) fn precise_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    // Failure leaves the default slack, which only costs precision.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}
