//! What a shim sends, and its view of what was sent.

use super::Shim;
use super::chain::max_out;
use crate::memory::Segment;
use crate::time::Time;
use crate::tx::{Flow, HeaderBuf, TxBatch, TxPacket};

/// A packet without its ICRC: headers and gathered payload.
#[derive(Clone, Copy)]
pub struct OutPacket<'a> {
    /// BTH and extension headers, the pad count set.
    pub header: &'a HeaderBuf,
    /// The payload.
    pub payload: &'a [Segment],
    /// ECN bits to send it with.
    pub ecn: u8,
}

impl OutPacket<'_> {
    /// Appends a copy of the payload. Copy it only once: its owner may write the memory meanwhile,
    /// and a second copy could differ.
    pub fn append_payload(&self, to: &mut Vec<u8>) {
        for segment in self.payload {
            segment.append(to);
        }
    }
}

/// Packets that the transport has sent, in order. The shim's own packets may be among them.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    batch: &'a TxBatch,
    packets: &'a [TxPacket],
}

impl<'a> Run<'a> {
    /// The packets.
    #[inline]
    pub fn packets(&self) -> &'a [TxPacket] {
        self.packets
    }

    /// The headers of one of them: BTH and extension headers.
    #[inline]
    pub fn header(&self, packet: &TxPacket) -> &'a [u8] {
        self.batch.header(packet)
    }

    /// The payload of one of them.
    #[inline]
    pub fn payload(&self, packet: &TxPacket) -> &'a [u8] {
        self.batch.payload(packet)
    }

    /// How many packets from `at` on, at most `most`, differ only in their PSNs, and their bytes,
    /// one after the other.
    #[inline]
    pub fn alike(&self, at: usize, most: usize) -> (usize, &'a [u8]) {
        let packets = self.packets.get(at..).unwrap_or_default();
        self.batch.alike(&packets[..most.min(packets.len())])
    }
}

/// Where a shim sends packets: to the shims outside of it, and after them to the port.
pub struct ShimOut<'a> {
    now: Time,
    batch: &'a mut TxBatch,
    flow: &'a mut Flow,
    /// The shims outside, from the next on.
    outside: &'a mut [Box<dyn Shim>],
    /// Start of the run in the batch.
    run_from: usize,
    data_ecn: u8,
    sent: u32,
    bytes: u64,
}

impl<'a> ShimOut<'a> {
    #[inline]
    pub(crate) fn new(
        now: Time,
        batch: &'a mut TxBatch,
        flow: &'a mut Flow,
        outside: &'a mut [Box<dyn Shim>],
        data_ecn: u8,
    ) -> ShimOut<'a> {
        let run_from = batch.run_mark();
        ShimOut { now, batch, flow, outside, run_from, data_ecn, sent: 0, bytes: 0 }
    }

    /// Makes the packets from `run_from` on the run.
    pub(crate) fn behind(self, run_from: usize) -> ShimOut<'a> {
        ShimOut { run_from, ..self }
    }

    /// The packets that [`Shim::passed`] is told about.
    #[inline]
    pub fn run(&self) -> Run<'_> {
        Run { batch: self.batch, packets: self.batch.run_since(self.run_from) }
    }

    /// The ECN bits of the connection's data.
    pub fn data_ecn(&self) -> u8 {
        self.data_ecn
    }

    /// Sends a packet to the QP's peer.
    ///
    /// # Panics
    /// If the batch is full: see [`Shim::max_out`] and [`ShimOut::room`].
    #[inline]
    pub fn send(&mut self, packet: OutPacket<'_>) {
        if !self.outside.is_empty() {
            return self.send_on(packet);
        }
        self.bytes += self.batch.push(self.flow, packet.ecn, packet.header, packet.payload);
        self.sent += 1;
    }

    /// Sends a packet through the next shim.
    fn send_on(&mut self, packet: OutPacket<'_>) {
        let Some((next, outside)) = self.outside.split_first_mut() else { return };
        let mut out = ShimOut::new(self.now, self.batch, self.flow, outside, self.data_ecn);
        next.outgoing(self.now, packet, &mut out);
        let (packets, bytes) = out.sent();
        self.sent += packets;
        self.bytes += bytes;
    }

    /// Sends a packet with a copy of its payload, so that the shim may reuse its buffer at once.
    /// The payload may begin in `header`, after the headers that the opcode has, with a multiple of
    /// four bytes.
    ///
    /// # Panics
    /// As [`ShimOut::send`].
    pub fn send_copy(&mut self, header: &HeaderBuf, payload: &[u8], ecn: u8) {
        if !self.outside.is_empty() {
            // Outer shims see the packet as its receiver will: with the opcode's headers.
            let (header, more) = header.split_payload();
            let payload = &[Segment::of_slice(more), Segment::of_slice(payload)];
            return self.send_on(OutPacket { header: &header, payload, ecn });
        }
        self.bytes += self.batch.push_copy(self.flow, ecn, header, payload);
        self.sent += 1;
    }

    /// Sends a packet as [`ShimOut::send_copy`] does. Up to [`MAX_LATE`](crate::MAX_LATE) packets
    /// that are sent later may overtake it, so that it does not interrupt a burst but follows it.
    ///
    /// # Panics
    /// As [`ShimOut::send`].
    pub fn send_late(&mut self, header: &HeaderBuf, payload: &[u8], ecn: u8) {
        if !self.outside.is_empty() {
            return self.send_copy(header, payload, ecn);
        }
        self.bytes += self.batch.push_late(self.flow, ecn, header, payload);
        self.sent += 1;
    }

    /// Packets that still fit, whatever the outer shims make of them.
    #[inline]
    pub fn room(&self) -> usize {
        match &*self.outside {
            [] => self.batch.room(),
            outside => self.batch.room() / max_out(outside),
        }
    }

    /// Packets and bytes sent so far.
    pub(crate) fn sent(&self) -> (u32, u64) {
        (self.sent, self.bytes)
    }
}
