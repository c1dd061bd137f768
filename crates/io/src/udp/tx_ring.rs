//! Gather lists for `sendmmsg`, built in place and used again for every call.
//!
//! Every piece of a gather list costs the kernel some 35 ns, which is as much as copying a kilobyte.
//! So short packets are copied into one piece per burst, and for long ones only the payload is a
//! piece of its own: a trailer and the header behind it are copied together.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::RawFd;

use bowline_nic::{Burst, TxBatch, TxPacket};

use super::cmsg::{Control, Writer};
use crate::sys::SockAddr;

/// Messages in one call.
const MAX_MESSAGES: usize = 64;
/// `UIO_MAXIOV`: pieces in one message.
const MAX_PIECES: usize = 1024;
/// Packets up to this long are copied.
const COPY_MAX_BYTES: u32 = 1536;
/// Copied bytes in one call: what stays in a core's own cache.
const MAX_STAGED_BYTES: usize = 256 << 10;

/// The arrays that `sendmmsg` reads. Their pointers mean something during a call only.
pub(super) struct TxRing {
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    /// Where each message's pieces start.
    first_piece: Vec<usize>,
    names: Vec<SockAddr>,
    controls: Vec<Control>,
    /// Copied bytes.
    staged: Vec<u8>,
    /// The pieces that are in `staged`, and from where: pointers are made when it has ceased to
    /// grow.
    staged_pieces: Vec<(usize, usize)>,
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
            pieces: Vec::with_capacity(2 * MAX_PIECES),
            first_piece: Vec::with_capacity(MAX_MESSAGES),
            names: vec![SockAddr::zeroed(); MAX_MESSAGES],
            controls: vec![Control::EMPTY; MAX_MESSAGES],
            staged: Vec::with_capacity(MAX_STAGED_BYTES + (64 << 10)),
            staged_pieces: Vec::with_capacity(MAX_PIECES),
        }
    }

    /// Sends bursts of a range, a message each; returns how many of them the kernel took.
    pub(super) fn send_bursts(
        &mut self,
        fd: RawFd,
        batch: &TxBatch,
        range: Range<usize>,
        scope: u32,
    ) -> io::Result<usize> {
        self.clear();
        for burst in batch.bursts()[range].iter().take(MAX_MESSAGES) {
            self.open_message(burst, scope, burst.packet_count() > 1);
            if burst.segment_len <= COPY_MAX_BYTES {
                self.stage(batch, batch.packets(burst));
            } else {
                self.gather(batch, batch.packets(burst));
            }
            if self.pieces.len() >= 2 * MAX_PIECES || self.staged.len() >= MAX_STAGED_BYTES {
                break;
            }
        }
        self.send(fd)
    }

    /// Sends the packets of one burst from `skip` on, a message each; returns how many went out.
    pub(super) fn send_packets(
        &mut self,
        fd: RawFd,
        batch: &TxBatch,
        burst: &Burst,
        skip: usize,
        scope: u32,
    ) -> io::Result<usize> {
        self.clear();
        let packets = batch.packets(burst).iter().enumerate();
        for (ip_id, packet) in packets.skip(skip).take(MAX_MESSAGES) {
            self.open_message(burst, scope, false);
            let start = self.staged.len();
            batch.append_packet_to(packet, &mut self.staged);
            if burst.dst.is_ipv4() {
                reseal_for_id_0(&mut self.staged[start..], ip_id as u16);
            }
            self.close_staged(start);
            if self.staged.len() >= MAX_STAGED_BYTES {
                break;
            }
        }
        self.send(fd)
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.first_piece.clear();
        self.staged.clear();
        self.staged_pieces.clear();
    }

    #[inline]
    fn open_message(&mut self, burst: &Burst, scope: u32, segmented: bool) {
        let at = self.first_piece.len();
        self.first_piece.push(self.pieces.len());
        self.names[at] = SockAddr::new(burst.dst, burst.dst_port, scope);
        let header = &mut self.headers[at].msg_hdr;
        let mut control = Writer::new(header, &mut self.controls[at]);
        if burst.tos != 0 {
            let (level, kind) = if burst.dst.is_ipv4() {
                (libc::IPPROTO_IP, libc::IP_TOS)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            };
            control.push(level, kind, libc::c_int::from(burst.tos));
        }
        if segmented {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, burst.segment_len as u16);
        }
        control.finish();
    }

    /// Adds packets as one copied piece.
    fn stage(&mut self, batch: &TxBatch, packets: &[TxPacket]) {
        let start = self.staged.len();
        for packet in packets {
            batch.append_packet_to(packet, &mut self.staged);
        }
        self.close_staged(start);
    }

    /// Adds packets with their payload in place.
    fn gather(&mut self, batch: &TxBatch, packets: &[TxPacket]) {
        let (first_piece, first_staged) = (self.pieces.len(), self.staged_pieces.len());
        let first_byte = self.staged.len();
        let mut start = first_byte;
        for packet in packets {
            self.staged.extend_from_slice(packet.header());
            for segment in batch.payload(packet).iter().filter(|s| !s.is_empty()) {
                self.close_staged(start);
                start = self.staged.len();
                self.pieces.push(libc::iovec {
                    iov_base: segment.as_ptr().cast_mut().cast(),
                    iov_len: segment.len(),
                });
            }
            self.staged.extend_from_slice(packet.trailer());
        }
        self.close_staged(start);
        if self.pieces.len() - first_piece > MAX_PIECES {
            // Long gather lists of the application's: the kernel would refuse the message.
            self.pieces.truncate(first_piece);
            self.staged_pieces.truncate(first_staged);
            self.staged.truncate(first_byte);
            self.stage(batch, packets);
        }
    }

    /// Makes what was copied since `start` a piece.
    #[inline]
    fn close_staged(&mut self, start: usize) {
        let iov_len = self.staged.len() - start;
        if iov_len > 0 {
            self.staged_pieces.push((self.pieces.len(), start));
            self.pieces.push(libc::iovec { iov_base: std::ptr::null_mut(), iov_len });
        }
    }

    /// Points the headers to what was gathered, and sends.
    fn send(&mut self, fd: RawFd) -> io::Result<usize> {
        for &(piece, start) in &self.staged_pieces {
            self.pieces[piece].iov_base = self.staged[start..].as_ptr().cast_mut().cast();
        }
        let count = self.first_piece.len();
        for at in 0..count {
            let first = self.first_piece[at];
            let end = self.first_piece.get(at + 1).copied().unwrap_or(self.pieces.len());
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = self.names[at].as_ptr().cast_mut().cast();
            header.msg_namelen = self.names[at].len();
            header.msg_iov = self.pieces[first..end].as_mut_ptr();
            header.msg_iovlen = (end - first) as _;
        }
        // SAFETY: the first `count` headers point to names, control messages and pieces in vectors
        // of `self` that nobody touches before the call returns. The pieces point to `self`'s own
        // copies or to payload of the batch, which the caller borrows: registered memory that is
        // readable by the contract of `Region`, or the batch's own. Where an application broke that
        // contract by unmapping it, the kernel answers EFAULT. The kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(fd, self.headers.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// Makes a packet that was sealed for another place in a burst right for going out alone, that is
/// with IPv4 identification 0.
fn reseal_for_id_0(packet: &mut [u8], ip_id: u16) {
    // Behind the identification: 14 bytes of IPv4 header, the UDP header, the packet.
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
