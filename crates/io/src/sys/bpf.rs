//! eBPF: an XDP program on an interface, and the map of its sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// One instruction, as the kernel reads it.
pub(crate) type Instruction = [u8; 8];

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// The program reads only the start of a frame, wherever the rest is.
const PROG_HAS_FRAGS: u32 = 1 << 5;

/// Space for every member of the kernel's `union bpf_attr` that is used here. The kernel accepts a
/// longer one than it knows if the rest is zeroes.
#[repr(C, align(8))]
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 128])
    }

    /// Sets the word at a byte offset.
    fn u32(mut self, at: usize, value: u32) -> Attr {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Sets the pointer at a byte offset; what it points to must outlive the call.
    fn pointer(mut self, at: usize, to: *const u8) -> Attr {
        self.0[at..at + 8].copy_from_slice(&(to.addr() as u64).to_ne_bytes());
        self
    }

    /// # Safety
    /// All pointers that were set must be valid for what `command` does with them.
    unsafe fn call(&mut self, command: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: passes the address and size of a live attribute; the caller vouches for the rest.
        let ret = unsafe {
            libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len() as u32)
        };
        check(ret as libc::c_int)
    }
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just opened `fd` for us and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A map from receive queues to AF_XDP sockets.
pub(crate) struct SocketMap {
    fd: OwnedFd,
}

impl SocketMap {
    /// A map for `queues` queues, without sockets.
    pub(crate) fn new(queues: u32) -> io::Result<SocketMap> {
        let mut attr = Attr::new().u32(0, MAP_TYPE_XSKMAP).u32(4, 4).u32(8, 4).u32(12, queues);
        // SAFETY: no pointers.
        Ok(SocketMap { fd: owned(unsafe { attr.call(MAP_CREATE) }?) })
    }

    /// Redirects the frames of a queue to a socket.
    pub(crate) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (key, value) = (queue.to_ne_bytes(), socket.as_raw_fd().to_ne_bytes());
        let mut attr = Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .pointer(8, key.as_ptr())
            .pointer(16, value.as_ptr());
        // SAFETY: key and value are alive and have the map's sizes of four bytes each.
        unsafe { attr.call(MAP_UPDATE_ELEM) }?;
        Ok(())
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A program for received frames.
pub(crate) struct XdpProgram {
    fd: OwnedFd,
}

impl XdpProgram {
    /// Loads a program, which the kernel verifies.
    pub(crate) fn load(code: &[Instruction]) -> io::Result<XdpProgram> {
        let load = |flags| {
            let license = c"Dual MIT/GPL";
            let mut attr = Attr::new()
                .u32(0, PROG_TYPE_XDP)
                .u32(4, code.len() as u32)
                .pointer(8, code.as_ptr().cast())
                .pointer(16, license.as_ptr().cast())
                .u32(44, flags);
            attr.0[48..55].copy_from_slice(b"bowline");
            // SAFETY: the code is as long as the count says, the license ends with a zero, and both
            // outlive the call, which only reads them.
            unsafe { attr.call(PROG_LOAD) }
        };
        // Kernels before 5.18 do not know the flag.
        let fd = load(PROG_HAS_FRAGS).or_else(|_| load(0))?;
        Ok(XdpProgram { fd: owned(fd) })
    }

    /// Attaches the program to an interface, in the driver if possible, until the returned value is
    /// dropped or the process ends in any way.
    pub(crate) fn attach(&self, interface: u32) -> io::Result<Attached> {
        let mut attr = Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u32(4, interface)
            .u32(8, ATTACH_TYPE_XDP);
        // SAFETY: no pointers.
        Ok(Attached { _link: owned(unsafe { attr.call(LINK_CREATE) }?) })
    }

    /// The program's verdict on a frame.
    #[cfg(test)]
    pub(crate) fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut attr = Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u32(8, frame.len() as u32)
            .pointer(16, frame.as_ptr());
        // SAFETY: the frame is as long as the length says and outlives the call, which only reads
        // it. No room for an answer's data is offered.
        unsafe { attr.call(PROG_TEST_RUN) }?;
        Ok(u32::from_ne_bytes([attr.0[4], attr.0[5], attr.0[6], attr.0[7]]))
    }
}

/// A program's attachment to an interface. Dropping it detaches the program.
pub(crate) struct Attached {
    _link: OwnedFd,
}
