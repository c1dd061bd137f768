//! The seam under a transport: something that sees a QP's packets on their way out and in.
//!
//! FEC lives here, and later sealing and telemetry. Above a shim the transport notices nothing;
//! below it the packets are sealed with their ICRC.

use bowline_wire::{PacketView, Psn, Qpn};

use crate::memory::Segment;
use crate::time::Time;
use crate::tx::{Flow, HeaderBuf, TxBatch};
use crate::types::{Mtu, QpType};

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

    /// The transport sends a packet: pass it on with [`ShimOut::send`], and add to it.
    fn outgoing(&mut self, now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>);

    /// A packet has arrived, its ICRC checked: hand `up` what the transport shall see, in order.
    /// Packets from the peer's shim ([`bowline_wire::ShimPacket`], [`bowline_wire::Hello`]) come here
    /// too, and go no further.
    ///
    /// Returns whether [`Shim::poll_timeout`] may have changed.
    fn incoming(
        &mut self,
        now: Time,
        packet: PacketView<'_>,
        up: &mut dyn FnMut(PacketView<'_>),
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
        up: &mut dyn FnMut(PacketView<'_>),
    ) {
        let _ = (now, out, up);
    }
}

/// The connection that a shim sits under.
#[derive(Clone, Copy, Debug)]
pub struct ShimPeer {
    /// The transport.
    pub qp_type: QpType,
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

impl OutPacket<'_> {
    /// Runs `f` over the payload, piece by piece. The application may change the bytes meanwhile.
    #[inline]
    pub fn for_each_piece(&self, mut f: impl FnMut(&[u8])) {
        for segment in self.payload {
            segment.with_bytes(&mut f);
        }
    }
}

/// Where a shim sends packets to.
pub struct ShimOut<'a> {
    batch: &'a mut TxBatch,
    flow: &'a mut Flow,
    sent: u32,
    bytes: u64,
}

impl<'a> ShimOut<'a> {
    pub(crate) fn new(batch: &'a mut TxBatch, flow: &'a mut Flow) -> ShimOut<'a> {
        ShimOut { batch, flow, sent: 0, bytes: 0 }
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
    fn outgoing(&mut self, _now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        out.send(packet);
    }

    fn incoming(
        &mut self,
        _now: Time,
        packet: PacketView<'_>,
        up: &mut dyn FnMut(PacketView<'_>),
    ) -> bool {
        up(packet);
        false
    }
}
