//! Messages for `sendmmsg`, built in place and reused for every call.
//!
//! A burst's packets are contiguous in their batch, so a message is one `iovec`: the kernel takes
//! some 35 ns for every further entry of a gather list, as much as copying a kilobyte.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::RawFd;

use bowline_nic::{Burst, TxBatch};

use super::cmsg::{Control, Writer};
use crate::port::Onward;
use crate::sys::SockAddr;

/// Messages in one call.
const MAX_MESSAGES: usize = 64;
/// Bytes resealed for one call: they stay in a core's own cache.
const MAX_RESEALED_BYTES: usize = 256 << 10;

/// The envelope of a message.
struct Head {
    dst: IpAddr,
    dst_port: u16,
    tos: u8,
    /// Interface index, for link-local IPv6 destinations.
    scope: u32,
}

impl Head {
    #[inline]
    fn of(burst: &Burst, scope: u32) -> Head {
        Head { dst: burst.dst, dst_port: burst.dst_port, tos: burst.tos, scope }
    }
}

/// The arrays that `sendmmsg` reads. Their pointers are valid only during a call.
pub(super) struct TxRing {
    headers: Vec<libc::mmsghdr>,
    /// One per message.
    pieces: Vec<libc::iovec>,
    names: Vec<SockAddr>,
    controls: Vec<Control>,
    /// Packets sent in another position than they were sealed for.
    resealed: Vec<u8>,
}

// SAFETY: the raw pointers in `headers` and `pieces` are overwritten before each use and never
// followed outside of the call that wrote them, so a ring may move between threads.
unsafe impl Send for TxRing {}

impl TxRing {
    pub(super) fn new() -> TxRing {
        // SAFETY: `mmsghdr` is a plain C struct for which zeroes are valid.
        let empty: libc::mmsghdr = unsafe { mem::zeroed() };
        TxRing {
            headers: vec![empty; MAX_MESSAGES],
            pieces: Vec::with_capacity(MAX_MESSAGES),
            names: vec![SockAddr::zeroed(); MAX_MESSAGES],
            controls: vec![Control::EMPTY; MAX_MESSAGES],
            resealed: Vec::new(),
        }
    }

    /// Sends bursts of a range, one message each; returns how many the kernel took.
    pub(super) fn send_bursts(
        &mut self,
        fd: RawFd,
        batch: &TxBatch,
        range: Range<usize>,
        scope: u32,
    ) -> io::Result<usize> {
        self.pieces.clear();
        for burst in batch.bursts()[range].iter().take(MAX_MESSAGES) {
            let segment_len = (burst.packet_count() > 1).then_some(burst.segment_len as u16);
            self.add_message(Head::of(burst, scope), segment_len, batch.burst_bytes(burst));
        }
        self.send(fd)
    }

    /// Sends datagrams, in order; returns how many the kernel took.
    pub(super) fn send_datagrams<'a>(
        &mut self,
        fd: RawFd,
        datagrams: impl Iterator<Item = (&'a Onward, &'a [u8])>,
        scope: u32,
    ) -> io::Result<usize> {
        self.pieces.clear();
        for (onward, bytes) in datagrams.take(MAX_MESSAGES) {
            let Onward { dst, dst_port, tos, frame_len, .. } = *onward;
            let segment_len = (bytes.len() > frame_len).then_some(frame_len as u16);
            self.add_message(Head { dst, dst_port, tos, scope }, segment_len, bytes);
        }
        if self.pieces.is_empty() { Ok(0) } else { self.send(fd) }
    }

    /// Sends the packets of one burst from `skip` on, one message each; returns how many were sent.
    pub(super) fn send_packets(
        &mut self,
        fd: RawFd,
        batch: &TxBatch,
        burst: &Burst,
        skip: usize,
        scope: u32,
    ) -> io::Result<usize> {
        self.pieces.clear();
        let mut resealed = mem::take(&mut self.resealed);
        resealed.clear();
        let mut ends = [0; MAX_MESSAGES];
        let mut count = 0;
        let packets = batch.packets(burst).iter().enumerate();
        for (ip_id, packet) in packets.skip(skip).take(MAX_MESSAGES) {
            let start = resealed.len();
            resealed.extend_from_slice(batch.bytes(packet));
            if burst.dst.is_ipv4() {
                reseal_for_id_0(&mut resealed[start..], ip_id as u16);
            }
            ends[count] = resealed.len();
            count += 1;
            if resealed.len() >= MAX_RESEALED_BYTES {
                break;
            }
        }
        let mut start = 0;
        for end in &ends[..count] {
            self.add_message(Head::of(burst, scope), None, &resealed[start..*end]);
            start = *end;
        }
        let sent = self.send(fd);
        self.resealed = resealed;
        sent
    }

    #[inline]
    fn add_message(&mut self, head: Head, segment_len: Option<u16>, bytes: &[u8]) {
        let at = self.pieces.len();
        self.pieces
            .push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        self.names[at] = SockAddr::new(head.dst, head.dst_port, head.scope);
        let header = &mut self.headers[at].msg_hdr;
        let mut control = Writer::new(header, &mut self.controls[at]);
        if head.tos != 0 {
            let (level, kind) = if head.dst.is_ipv4() {
                (libc::IPPROTO_IP, libc::IP_TOS)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            };
            control.push(level, kind, libc::c_int::from(head.tos));
        }
        if let Some(segment_len) = segment_len {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment_len);
        }
        control.finish();
    }

    /// Points the headers to names and pieces, and sends. The bytes that were added must still be
    /// alive.
    fn send(&mut self, fd: RawFd) -> io::Result<usize> {
        let count = self.pieces.len();
        for at in 0..count {
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = self.names[at].as_ptr().cast_mut().cast();
            header.msg_namelen = self.names[at].len();
            header.msg_iov = &raw mut self.pieces[at];
            header.msg_iovlen = 1;
        }
        let flags = libc::MSG_DONTWAIT as _; // musl's type is unsigned
        // SAFETY: the first `count` headers point to names, control messages and pieces in vectors
        // of `self` that nobody touches before the call returns. The pieces point to bytes that
        // all callers have borrowed, or keep, until then. The kernel only reads them.
        let sent =
            unsafe { libc::sendmmsg(fd, self.headers.as_mut_ptr(), count as libc::c_uint, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// Reseals a packet that was sealed for another position in a burst, so that it can be sent alone,
/// that is with IPv4 identification 0.
fn reseal_for_id_0(packet: &mut [u8], ip_id: u16) {
    // After the identification: 14 bytes of IPv4 header, the UDP header, the packet.
    let Some(bytes_after) = (14 + 8 + packet.len()).checked_sub(bowline_wire::ICRC_LEN) else {
        return;
    };
    if let Some(icrc) = packet.last_chunk_mut()
        && ip_id != 0
    {
        let sealed = u32::from_le_bytes(*icrc);
        let alone = bowline_wire::icrc_replace(sealed, &ip_id.to_be_bytes(), &[0, 0], bytes_after);
        *icrc = alone.to_le_bytes();
    }
}
