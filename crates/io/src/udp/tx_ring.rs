//! Gather lists for `sendmmsg`, built in place and used again for every call.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::RawFd;

use bowline_nic::{Burst, TxBatch, TxPacket};

use super::cmsg::{Control, Writer};
use crate::sys::SockAddr;

/// Messages in one call.
const MAX_MESSAGES: usize = 64;
/// `UIO_MAXIOV`: pieces in one message.
const MAX_PIECES: usize = 1024;

/// The arrays that `sendmmsg` reads. Their pointers mean something during a call only.
pub(super) struct TxRing {
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    /// Where each message's pieces start.
    first_piece: Vec<usize>,
    names: Vec<SockAddr>,
    controls: Vec<Control>,
    /// A burst with more pieces than the kernel takes, in one piece.
    staged: Vec<u8>,
    /// Trailers of packets that leave their burst, their ICRC being for another IP identification.
    trailers: Vec<[u8; 8]>,
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
            staged: Vec::new(),
            trailers: Vec::new(),
        }
    }

    /// Sends bursts from `from` on, a message each; returns how many of them the kernel took.
    pub(super) fn send_bursts(
        &mut self,
        fd: RawFd,
        batch: &TxBatch,
        from: usize,
        scope: u32,
    ) -> io::Result<usize> {
        self.clear();
        for burst in batch.bursts()[from..].iter().take(MAX_MESSAGES) {
            self.open_message(burst, scope, burst.packet_count() > 1);
            let first = self.pieces.len();
            for packet in batch.packets(burst) {
                self.add(packet.header());
                self.add_payload(batch, packet);
                self.add(packet.trailer());
            }
            if self.pieces.len() - first > MAX_PIECES {
                self.pieces.truncate(first);
                self.stage(batch, burst);
                // There is one staging buffer: it belongs to this message until the call is over.
                break;
            }
            if self.pieces.len() >= 2 * MAX_PIECES {
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
        self.trailers.clear();
        let packets = batch.packets(burst);
        for (ip_id, packet) in packets.iter().enumerate().skip(skip).take(MAX_MESSAGES) {
            self.trailers
                .push(trailer_for_id_0(packet, ip_id as u16, burst.dst.is_ipv4()));
        }
        for (i, packet) in packets.iter().skip(skip).take(MAX_MESSAGES).enumerate() {
            self.open_message(burst, scope, false);
            self.add(packet.header());
            self.add_payload(batch, packet);
            let trailer = libc::iovec {
                iov_base: self.trailers[i].as_ptr().cast_mut().cast(),
                iov_len: packet.trailer().len(),
            };
            self.pieces.push(trailer);
        }
        self.send(fd)
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.first_piece.clear();
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

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        self.pieces.push(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
    }

    #[inline]
    fn add_payload(&mut self, batch: &TxBatch, packet: &TxPacket) {
        for segment in batch.payload(packet) {
            self.pieces.push(libc::iovec {
                iov_base: segment.as_ptr().cast_mut().cast(),
                iov_len: segment.len(),
            });
        }
    }

    #[cold]
    fn stage(&mut self, batch: &TxBatch, burst: &Burst) {
        self.staged.clear();
        for packet in batch.packets(burst) {
            batch.append_packet_to(packet, &mut self.staged);
        }
        self.pieces.push(libc::iovec {
            iov_base: self.staged.as_ptr().cast_mut().cast(),
            iov_len: self.staged.len(),
        });
    }

    /// Points the headers to what was gathered, and sends.
    fn send(&mut self, fd: RawFd) -> io::Result<usize> {
        let count = self.first_piece.len();
        for at in 0..count {
            let first = self.first_piece[at];
            let end = self
                .first_piece
                .get(at + 1)
                .copied()
                .unwrap_or(self.pieces.len());
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = self.names[at].as_ptr().cast_mut().cast();
            header.msg_namelen = self.names[at].len();
            header.msg_iov = self.pieces[first..end].as_mut_ptr();
            header.msg_iovlen = (end - first) as _;
        }
        // SAFETY: the first `count` headers point to names, control messages and pieces in vectors
        // of `self` that nobody touches before the call returns. The pieces point to headers and
        // trailers of the batch, which the caller borrows, to `self`'s own copies, or to registered
        // memory that is readable by the contract of `Region`; where an application broke that
        // contract by unmapping it, the kernel answers EFAULT. The kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                fd,
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(sent as usize)
        }
    }
}

/// A packet's trailer when it goes out alone, that is with identification 0 instead of `ip_id`.
fn trailer_for_id_0(packet: &TxPacket, ip_id: u16, is_ipv4: bool) -> [u8; 8] {
    let mut out = [0; 8];
    let trailer = packet.trailer();
    out[..trailer.len()].copy_from_slice(trailer);
    if is_ipv4
        && ip_id != 0
        && let Some(icrc) = out[..trailer.len()].last_chunk_mut::<4>()
    {
        // Behind the identification: 14 bytes of IPv4 header, the UDP header, the packet.
        let bytes_after = 14 + 8 + packet.udp_payload_len() - icrc.len();
        let sealed = u32::from_le_bytes(*icrc);
        let alone = bowline_wire::icrc_replace(sealed, &ip_id.to_be_bytes(), &[0, 0], bytes_after);
        *icrc = alone.to_le_bytes();
    }
    out
}
