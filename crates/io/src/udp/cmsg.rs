//! Control messages: a datagram's metadata.

#![allow(unsafe_code)]

use std::mem::size_of;
use std::ptr;

use libc::{c_int, c_uint};

/// Space for all control messages of a datagram, aligned as the kernel wants them.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Control([u8; Control::LEN]);

impl Control {
    /// Four control messages of up to eight bytes each, and some spare.
    pub(super) const LEN: usize = 128;
    /// Nothing in it.
    pub(super) const EMPTY: Control = Control([0; Control::LEN]);
}

/// Appends control messages to a message header that already points to a [`Control`].
pub(super) struct Writer<'a> {
    header: &'a mut libc::msghdr,
    used: usize,
}

impl<'a> Writer<'a> {
    /// Starts with an empty list in `control`.
    pub(super) fn new(header: &'a mut libc::msghdr, control: &'a mut Control) -> Writer<'a> {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = Control::LEN as _;
        Writer { header, used: 0 }
    }

    /// Appends one.
    pub(super) fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        const { assert!(size_of::<T>() <= 8) };
        // SAFETY: computes a size from a size.
        let space = unsafe { libc::CMSG_SPACE(size_of::<T>() as c_uint) } as usize;
        assert!(self.used + space <= Control::LEN, "a datagram has at most four control messages");
        // SAFETY: `msg_control` points to a live `Control`, borrowed for as long as `self`, and
        // `used + space` stays within it; entries start at multiples of the header's alignment
        // because `CMSG_SPACE` rounds up to it.
        unsafe {
            let entry = self.header.msg_control.cast::<u8>().add(self.used).cast::<libc::cmsghdr>();
            (*entry).cmsg_level = level;
            (*entry).cmsg_type = kind;
            (*entry).cmsg_len = libc::CMSG_LEN(size_of::<T>() as c_uint) as _;
            ptr::write_unaligned(libc::CMSG_DATA(entry).cast::<T>(), value);
        }
        self.used += space;
    }

    /// Fixes the length, or removes the pointer if nothing was written.
    pub(super) fn finish(self) {
        self.header.msg_controllen = self.used as _;
        if self.used == 0 {
            self.header.msg_control = ptr::null_mut();
        }
    }
}

/// A received datagram's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ancillary {
    /// TOS or traffic class.
    pub(super) tos: u8,
    /// TTL or hop limit.
    pub(super) ttl: u8,
    /// Length of each frame of a merged datagram; 0 if it is a single one.
    pub(super) gro_segment_len: usize,
    /// The socket's wrapping count of datagrams dropped for lack of space.
    pub(super) overflows: Option<u32>,
}

/// Reads the control messages that the kernel wrote.
///
/// # Safety
/// `header.msg_control` must point to `header.msg_controllen` readable bytes that the kernel wrote.
#[allow(clippy::unnecessary_cast, reason = "`cmsg_len` is a u32 in other C libraries")]
pub(super) unsafe fn read(header: &libc::msghdr) -> Ancillary {
    let mut out = Ancillary::default();
    // SAFETY: by this function's contract the list is well formed; the macros stay within it.
    let mut entry = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !entry.is_null() {
        // SAFETY: a non-null entry lies within the list, its data behind it.
        let (head, data) = unsafe { (ptr::read_unaligned(entry), libc::CMSG_DATA(entry)) };
        // SAFETY: computes a size from a size.
        let data_len =
            (head.cmsg_len as usize).saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        // SAFETY: the entry has `data_len` bytes of data.
        let value = unsafe { read_number(data, data_len) };
        match (head.cmsg_level, head.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => out.gro_segment_len = value as usize,
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                out.tos = value as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                out.ttl = value as u8;
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => out.overflows = Some(value),
            _ => {}
        }
        // SAFETY: as for `CMSG_FIRSTHDR`; `entry` is an element of this list.
        entry = unsafe { libc::CMSG_NXTHDR(header, entry) };
    }
    out
}

/// Reads a number that the kernel wrote as a byte (IPv4 TOS), a short or an int.
///
/// # Safety
/// `data` must point to `len` readable bytes.
unsafe fn read_number(data: *const u8, len: usize) -> u32 {
    // SAFETY: every read is within the `len` bytes that the caller promises.
    unsafe {
        match len {
            0 => 0,
            1 => u32::from(data.read()),
            2 | 3 => u32::from(data.cast::<u16>().read_unaligned()),
            _ => data.cast::<u32>().read_unaligned(),
        }
    }
}
