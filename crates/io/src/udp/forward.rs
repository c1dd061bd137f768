//! Sends datagrams on from the buffers that they were received into.

use std::os::fd::AsRawFd;

use bowline_nic::FrameMeta;

use super::{UdpPort, meta_of, note_overflow};
use crate::port::{Onward, Round};

/// What the last call received.
pub(super) struct Datagrams<'a> {
    pub(super) port: &'a mut UdpPort,
    pub(super) count: usize,
}

impl UdpPort {
    /// Whether datagrams can leave as they came, in one piece.
    pub(super) fn forwards_in_place(&self) -> bool {
        self.membership.is_none()
            && self.gso_works
            && self.resume_packet == 0
            && self.caps.tx.max_segments > 1
    }

    /// Counts a datagram that stays where it is; returns the number of its frames.
    pub(super) fn count_kept(&mut self, slot: usize) -> usize {
        let message = self.rx.message(slot);
        let counters = &mut self.counters;
        note_overflow(&message, &mut self.overflow_seen, counters);
        if message.src.is_none() || message.truncated {
            counters.rx_truncated += 1;
            return 0;
        }
        let frames = message.data.len().div_ceil(message.segment_len);
        counters.rx_bytes += message.data.len() as u64;
        counters.rx_frames += frames as u64;
        frames
    }
}

impl Round for Datagrams<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn envelope(&self, datagram: usize) -> Option<(FrameMeta, usize)> {
        let message = self.port.rx.message(datagram);
        meta_of(&message, self.port.caps.addr).map(|meta| (meta, message.segment_len))
    }

    fn bytes(&mut self, datagram: usize) -> &mut [u8] {
        self.port.rx.bytes(datagram)
    }

    fn send(&mut self, to: &[Onward]) -> usize {
        let UdpPort { tx, rx, socket, scope, counters, .. } = &mut *self.port;
        let datagrams = to.iter().map(|onward| (onward, rx.message(onward.datagram).data));
        // An error is met again, and handled, when the datagram is sent from a batch.
        let sent = tx.send_datagrams(socket.as_raw_fd(), datagrams, *scope).unwrap_or(0);
        for onward in &to[..sent] {
            let bytes = rx.message(onward.datagram).data.len();
            counters.tx_packets += bytes.div_ceil(onward.frame_len.max(1)) as u64;
            counters.tx_bytes += bytes as u64;
        }
        counters.tx_bursts += sent as u64;
        sent
    }
}
