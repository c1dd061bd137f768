//! The seam under a transport: something that sees a QP's packets on their way out and in.
//!
//! FEC lives here, and later sealing and telemetry. Above a shim the transport notices nothing;
//! below it the packets are sealed with their ICRC.

use bowline_wire::PacketView;

use crate::memory::Segment;
use crate::time::Time;
use crate::tx::{Flow, HeaderBuf, TxBatch};

/// Sits between a QP's transport and the port, in both directions, with timers.
///
/// Calls come in any order; `now` never goes back. A shim allocates nothing per packet once warm.
pub trait Shim: Send {
    /// Most packets that one outgoing packet, or one timeout, turns into.
    fn max_out(&self) -> usize {
        1
    }

    /// The transport sends a packet: pass it on with [`ShimOut::send`], and add to it.
    fn outgoing(&mut self, now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>);

    /// A packet has arrived, its ICRC checked: hand `up` what the transport shall see, in order.
    fn incoming(&mut self, now: Time, packet: PacketView<'_>, up: &mut dyn FnMut(PacketView<'_>));

    /// When [`Shim::handle_timeout`] should be called.
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
    /// If the shim sends more packets in one call than its [`Shim::max_out`] says.
    #[inline]
    pub fn send(&mut self, packet: OutPacket<'_>) {
        self.bytes += self.batch.push(self.flow, packet.ecn, packet.header, packet.payload);
        self.sent += 1;
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

    fn incoming(&mut self, _now: Time, packet: PacketView<'_>, up: &mut dyn FnMut(PacketView<'_>)) {
        up(packet);
    }
}
