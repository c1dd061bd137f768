//! System calls that no crate of ours wraps, each behind a safe function: all of this crate's
//! `unsafe` code.

#![allow(unsafe_code)]

mod command;
mod interface;
mod namespace;
mod schedule;
mod signal;
mod tun;

use std::io;

pub(crate) use command::die_with_parent;
pub(crate) use interface::Configurator;
pub(crate) use namespace::{enter_user_namespace, unshare_network};
pub(crate) use schedule::run_before_programs;
pub use signal::{Signals, Woken};
pub(crate) use tun::{Offloads, Tun};

/// Turns the usual `-1` of a system call into the error it set.
fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A request about the interface of this name.
fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is a plain C struct for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}
