//! The seam under a transport: something that sees a QP's packets on their way out and in.
//!
//! FEC lives here, and later sealing and telemetry. Above a shim the transport notices nothing;
//! below it the packets are sealed with their ICRC.

use bowline_wire::{PacketView, Psn, Qpn};

use crate::memory::Segment;
use crate::time::Time;
use crate::tx::{Flow, HeaderBuf, TxBatch, TxPacket};
use crate::types::{Mtu, TransportDescriptor};

/// Sits between a QP's transport and the port, in both directions, with timers.
///
/// [`Shim::started`] comes first; the other calls in any order; `now` never goes back. A shim
/// allocates nothing per packet once warm.
pub trait Shim: Send {
    /// Room in the batch without which neither [`Shim::outgoing`] nor [`Shim::handle_timeout`] is
    /// called. Whatever more a shim sends, it asks [`ShimOut::room`] for first.
    fn max_out(&self) -> usize {
        1
    }

    /// The QP is ready to receive: a connection begins, and nothing is left of the one before.
    fn started(&mut self, now: Time, peer: &ShimPeer) {
        let _ = (now, peer);
    }

    /// The QP has failed or was reset: let go of everything, until a connection begins again.
    fn stopped(&mut self) {}

    /// How many packets the transport may send before the shim looks at them ([`Shim::passed`]). None,
    /// the default, means that each goes through [`Shim::outgoing`], which may change it or keep it.
    /// A shim that only watches does better with several at a time.
    fn run_len(&self) -> u32 {
        0
    }

    /// The transport has sent [`ShimOut::run`]: as many packets as the shim said, or fewer where a message
    /// or the QP's turn ends. Returns how many may go before the next call.
    fn passed(&mut self, now: Time, out: &mut ShimOut<'_>) -> u32 {
        let _ = (now, out);
        self.run_len()
    }

    /// The transport sends a packet: pass it on with [`ShimOut::send`], and add to it. Only for a shim
    /// whose [`Shim::run_len`] is 0.
    fn outgoing(&mut self, now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        let _ = now;
        out.send(packet);
    }

    /// Whether a packet from the peer's shim ([`bowline_wire::ShimPacket`]) with this payload would change
    /// nothing, so that its ICRC need not be checked.
    fn ignores(&mut self, payload: &[u8]) -> bool {
        let _ = payload;
        false
    }

    /// Whether a packet is to go up as it is, at once, and changes nothing that
    /// [`Shim::poll_timeout`] depends on: the quick way for packets in order. All others go through
    /// [`Shim::incoming`].
    fn follows(&mut self, packet: &PacketView<'_>) -> bool {
        let _ = packet;
        false
    }

    /// [`Shim::follows`] for packets from the middle of a message, side by side, `len` bytes each, BTH to
    /// ICRC, which have no other headers and no pad, and differ in their PSNs only, each being one more
    /// than the last. Returns how many of them are to go up, from the first on.
    fn follows_run(&mut self, packets: &[u8], len: usize) -> usize {
        let _ = (packets, len);
        0
    }

    /// A packet has arrived, its ICRC checked: hand `up` what the transport shall see, in order.
    /// Packets from the peer's shim ([`bowline_wire::ShimPacket`], [`bowline_wire::Hello`]) come here
    /// too, and go no further.
    ///
    /// Returns whether [`Shim::poll_timeout`] may have changed.
    fn incoming(
        &mut self,
        now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool;

    /// When [`Shim::handle_timeout`] should be called; a time past if something waits to be sent.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Its time has come: may send packets, and hand packets up.
    fn handle_timeout(
        &mut self,
        now: Time,
        out: &mut ShimOut<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) {
        let _ = (now, out, up);
    }
}

/// The connection that a shim sits under.
#[derive(Clone, Copy, Debug)]
pub struct ShimPeer {
    /// The transport above.
    pub transport: &'static TransportDescriptor,
    /// Path MTU.
    pub mtu: Mtu,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// PSN of the peer's first request.
    pub rq_psn: Psn,
}

/// A packet without its seal: headers and gathered payload.
#[derive(Clone, Copy)]
pub struct OutPacket<'a> {
    /// BTH and extension headers, the pad count set.
    pub header: &'a HeaderBuf,
    /// The payload.
    pub payload: &'a [Segment],
    /// ECN bits to send it with.
    pub ecn: u8,
}

/// Packets that the transport has sent, in order. Other packets of the shim's own may be among them.
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

    /// How many packets from `at` on, at most `most`, differ in their PSNs only, and their bytes, one
    /// behind the other.
    #[inline]
    pub fn alike(&self, at: usize, most: usize) -> (usize, &'a [u8]) {
        let packets = self.packets.get(at..).unwrap_or_default();
        self.batch.alike(&packets[..most.min(packets.len())])
    }
}

/// Where a shim sends packets to.
pub struct ShimOut<'a> {
    batch: &'a mut TxBatch,
    flow: &'a mut Flow,
    /// Where the run begins, in the batch.
    run_from: usize,
    data_ecn: u8,
    sent: u32,
    bytes: u64,
}

impl<'a> ShimOut<'a> {
    pub(crate) fn new(batch: &'a mut TxBatch, flow: &'a mut Flow, data_ecn: u8) -> ShimOut<'a> {
        let run_from = batch.run_mark();
        ShimOut { batch, flow, run_from, data_ecn, sent: 0, bytes: 0 }
    }

    /// With the packets from `run_from` on as the run.
    pub(crate) fn behind(self, run_from: usize) -> ShimOut<'a> {
        ShimOut { run_from, ..self }
    }

    /// The packets that [`Shim::passed`] is about.
    #[inline]
    pub fn run(&self) -> Run<'_> {
        Run { batch: self.batch, packets: self.batch.run_since(self.run_from) }
    }

    /// The ECN bits of the connection's data.
    pub fn data_ecn(&self) -> u8 {
        self.data_ecn
    }

    /// Seals a packet with its ICRC and sends it to the QP's peer.
    ///
    /// # Panics
    /// If the batch is full: see [`Shim::max_out`] and [`ShimOut::room`].
    #[inline]
    pub fn send(&mut self, packet: OutPacket<'_>) {
        self.bytes += self.batch.push(self.flow, packet.ecn, packet.header, packet.payload);
        self.sent += 1;
    }

    /// Sends a packet whose payload is copied, so that the shim may change its own at once.
    ///
    /// # Panics
    /// As [`ShimOut::send`].
    pub fn send_copy(&mut self, header: &HeaderBuf, payload: &[u8], ecn: u8) {
        self.bytes += self.batch.push_copy(self.flow, ecn, header, payload);
        self.sent += 1;
    }

    /// Sends a packet as [`ShimOut::send_copy`] does. It may come behind some packets, at most
    /// [`MAX_LATE`](crate::MAX_LATE), that are sent after it: behind the burst that it would interrupt.
    ///
    /// # Panics
    /// As [`ShimOut::send`].
    pub fn send_late(&mut self, header: &HeaderBuf, payload: &[u8], ecn: u8) {
        self.bytes += self.batch.push_late(self.flow, ecn, header, payload);
        self.sent += 1;
    }

    /// Packets that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.batch.room()
    }

    /// Packets and bytes sent so far.
    pub(crate) fn sent(&self) -> (u32, u64) {
        (self.sent, self.bytes)
    }
}

/// A shim that changes nothing: what every other must be indistinguishable from on a clean link.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassThrough;

impl Shim for PassThrough {
    fn incoming(
        &mut self,
        _now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        up(packet);
        false
    }
}
