//! System calls, each behind a safe function. With the UDP port's message rings this is all the
//! `unsafe` there is in the crate.

#![allow(unsafe_code)]

mod area;
mod bpf;
mod epoll;
mod event;
mod filter;
mod interface;
mod lock;
#[cfg(test)]
pub(crate) mod namespace;
mod neighbour;
mod netlink;
mod poll;
mod process;
mod seqpacket;
mod shared;
mod socket;
mod thread;
mod timer;
mod xsk;

use std::io;

pub(crate) use area::SharedArea;
pub(crate) use bpf::{Attached, Instruction, SocketMap, XdpProgram};
pub(crate) use epoll::Epoll;
pub(crate) use event::EventFd;
pub(crate) use filter::attach_group_program;
pub(crate) use interface::{InterfaceQuery, interface_of};
pub use interface::{LocalAddress, local_address, local_addresses};
pub(crate) use lock::{is_byte_locked, try_lock_byte, unlock_byte};
pub(crate) use neighbour::{Hop, Neighbours};
pub use netlink::LinkNews;
pub(crate) use poll::{PollFd, poll};
pub(crate) use process::{descriptor_limit, effective_uid, overflow_uid};
pub(crate) use seqpacket::SeqPacket;
pub(crate) use shared::SharedWords;
pub(crate) use socket::{SockAddr, UdpSocketBuilder, connect_abstract, get_int, peer_uid, set_int};
pub use thread::{run_promptly, spawn_background};
pub(crate) use timer::TimerFd;
pub(crate) use xsk::{BindMode, MAX_FRAME, XdpSocket};

/// Turns the usual `-1` of a system call into the error it set.
fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}
