//! Buffers for `recvmmsg`, allocated once and reused for every call.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::slice;

use super::cmsg::{self, Control};
use crate::sys::SockAddr;

/// Space for the largest datagram, merged or not.
const SLOT_BYTES: usize = 64 << 10;
/// Full datagrams received in one call. Four stay in a core's own cache until they are read;
/// sixteen do not, which costs half as much again per byte.
const FULL_SLOTS: usize = 4;
/// If datagrams are shorter than this on average, receive more: then the system call dominates.
const SMALL_BYTES: usize = 16 << 10;

/// A received datagram, perhaps merged from several frames.
pub(super) struct Message<'a> {
    /// Its bytes.
    pub(super) data: &'a [u8],
    /// Who sent it; `None` if the kernel did not say.
    pub(super) src: Option<SocketAddr>,
    /// Length of each frame in it but the last, which may be shorter. Never 0.
    pub(super) segment_len: usize,
    /// TOS or traffic class.
    pub(super) tos: u8,
    /// TTL or hop limit.
    pub(super) ttl: u8,
    /// The socket's count of datagrams dropped for lack of space, if it changed.
    pub(super) overflows: Option<u32>,
    /// It was longer than the slot.
    pub(super) truncated: bool,
}

/// A ring of slots that `recvmmsg` fills.
pub(super) struct RxRing {
    headers: RawArray<libc::mmsghdr>,
    pieces: RawArray<libc::iovec>,
    names: RawArray<SockAddr>,
    controls: RawArray<Control>,
    data: RawArray<[u8; SLOT_BYTES]>,
    slots: usize,
    /// Slots offered to the next call.
    offered: usize,
    /// Slots that the last call filled: their headers have to be set up again.
    filled: usize,
}

impl RxRing {
    /// A ring of `slots` datagrams, at least one.
    pub(super) fn new(slots: usize) -> RxRing {
        let slots = slots.clamp(1, 1024);
        let mut ring = RxRing {
            headers: RawArray::zeroed(slots),
            pieces: RawArray::zeroed(slots),
            names: RawArray::zeroed(slots),
            controls: RawArray::zeroed(slots),
            data: RawArray::zeroed(slots),
            slots,
            offered: slots.min(FULL_SLOTS),
            filled: slots,
        };
        ring.reset();
        ring
    }

    /// Sets up the headers of the slots that were filled, which the kernel has changed.
    fn reset(&mut self) {
        for slot in 0..self.filled {
            // SAFETY: `slot` is below the arrays' length. All five are raw allocations that live
            // as long as the ring, are only reached through their pointers, and to none of which a
            // reference exists here: `message` ties its borrow to `&self`, and we have `&mut self`.
            unsafe {
                *self.pieces.at(slot) =
                    libc::iovec { iov_base: self.data.at(slot).cast(), iov_len: SLOT_BYTES };
                let header = &mut (*self.headers.at(slot)).msg_hdr;
                header.msg_name = self.names.at(slot).cast();
                header.msg_namelen = SockAddr::MAX_LEN;
                header.msg_iov = self.pieces.at(slot);
                header.msg_iovlen = 1;
                header.msg_control = self.controls.at(slot).cast();
                header.msg_controllen = Control::LEN as _;
                header.msg_flags = 0;
            }
        }
        self.filled = 0;
    }

    /// Receives what is pending, up to the currently best number of datagrams; returns how many.
    pub(super) fn recv(&mut self, fd: RawFd) -> io::Result<usize> {
        self.reset();
        // SAFETY: all headers point to slots of the ring's allocations with their true lengths, and
        // no reference into them exists while `self` is borrowed mutably. No timeout is passed.
        let received = unsafe {
            libc::recvmmsg(
                fd,
                self.headers.at(0),
                self.offered as libc::c_uint,
                libc::MSG_DONTWAIT as _, // musl's type is unsigned
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        self.filled = received as usize;
        if self.filled == self.offered {
            self.adapt();
        }
        Ok(self.filled)
    }

    /// Whether there may have been more than the `received` datagrams of the last call.
    pub(super) fn was_full(&self, received: usize) -> bool {
        received > 0 && received >= self.offered.min(FULL_SLOTS)
    }

    /// More was pending than requested: requests more next time if datagrams are small.
    fn adapt(&mut self) {
        // SAFETY: the kernel has filled these headers, and nobody writes to them now.
        let bytes: usize =
            (0..self.filled).map(|slot| unsafe { (*self.headers.at(slot)).msg_len } as usize).sum();
        let wanted = if bytes < SMALL_BYTES * self.filled { self.offered * 2 } else { FULL_SLOTS };
        self.offered = wanted.min(self.slots);
    }

    /// A datagram of the last `recv`.
    ///
    /// # Panics
    /// If `slot` is not below what `recv` returned.
    #[inline]
    pub(super) fn message(&self, slot: usize) -> Message<'_> {
        assert!(slot < self.filled, "slot {slot} of {} filled ones", self.filled);
        // SAFETY: the slot exists, the kernel has filled it, and until `self` is borrowed mutably
        // again nobody writes to it. `msg_len` is at most the slot's size, as the gather list said;
        // the `min` only makes that visible.
        let (header, name, data) = unsafe {
            let header = &*self.headers.at(slot);
            let len = (header.msg_len as usize).min(SLOT_BYTES);
            let data = slice::from_raw_parts(self.data.at(slot).cast::<u8>(), len);
            (header, *self.names.at(slot), data)
        };
        // SAFETY: the kernel wrote the control messages of this header and set their length.
        let ancillary = unsafe { cmsg::read(&header.msg_hdr) };
        let segment_len = match ancillary.gro_segment_len {
            0 => data.len().max(1),
            len => len,
        };
        Message {
            data,
            src: if header.msg_hdr.msg_namelen == 0 { None } else { name.to_std() },
            segment_len,
            tos: ancillary.tos,
            ttl: ancillary.ttl,
            overflows: ancillary.overflows,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

impl RxRing {
    /// The bytes of a datagram of the last `recv`, to be changed.
    ///
    /// # Panics
    /// If `slot` is not below what `recv` returned.
    pub(super) fn bytes(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < self.filled, "slot {slot} of {} filled ones", self.filled);
        // SAFETY: as in `message`; and the borrow is exclusive, so nobody else reads the slot.
        unsafe {
            let len = ((*self.headers.at(slot)).msg_len as usize).min(SLOT_BYTES);
            slice::from_raw_parts_mut(self.data.at(slot).cast::<u8>(), len)
        }
    }
}

/// Memory that the kernel writes to through pointers kept in other such memory. A `Vec` would do,
/// except that using it again invalidates pointers taken from it earlier.
struct RawArray<T> {
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: it owns plain memory, like a `Box<[T]>`; the types in it are C structs and bytes, whose
// pointers lead to other arrays of the same ring, which moves as a whole.
unsafe impl<T> Send for RawArray<T> {}

impl<T> RawArray<T> {
    /// `len` zeroed elements; only used for types for which zeroes are valid.
    fn zeroed(len: usize) -> RawArray<T> {
        let layout = Self::layout(len);
        // SAFETY: no ring has zero slots and no type in it zero bytes.
        let ptr = unsafe { alloc_zeroed(layout) };
        match NonNull::new(ptr.cast()) {
            Some(ptr) => RawArray { ptr, len },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(len: usize) -> Layout {
        Layout::array::<T>(len)
            .and_then(|layout| layout.align_to(64))
            .expect("a ring of 1024 slots fits the address space")
    }

    #[inline]
    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len, "slot {index} of {}", self.len);
        // SAFETY: within the allocation by the check above.
        unsafe { self.ptr.as_ptr().add(index) }
    }
}

impl<T> Drop for RawArray<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout; the elements need no drop.
        unsafe { dealloc(self.ptr.as_ptr().cast(), Self::layout(self.len)) }
    }
}
