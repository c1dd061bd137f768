//! The seam under a transport: what sees a QP's packets on their way out and in.
//!
//! Shims form a chain. The innermost is next to the transport, the outermost next to the port. A
//! packet leaves through the innermost first and arrives through the outermost first. What a shim
//! sends, whether it passes it on or adds it, goes through the shims outside of it; what it hands
//! up goes through those inside. So each sees the packets that its counterpart in the peer's chain
//! has seen, and the two chains must have the same order. Congestion notifications are the port's
//! and pass no shim.
//!
//! Behind the outermost shim a packet gets its ICRC, and before it the ICRC is checked: a shim may
//! change a packet without caring for either.

mod chain;
mod out;

use bowline_wire::{OpcodeSet, PacketView, Psn, Qpn};

pub(crate) use self::chain::Chain;
pub use self::out::{OutPacket, Run, ShimOut};
use crate::time::Time;
use crate::types::{Mtu, TransportDescriptor};

/// Sits between a QP's transport and the port, in both directions, with timers.
///
/// [`Shim::started`] comes first; the other calls in any order; `now` never goes back. A shim
/// allocates nothing per packet once warm.
pub trait Shim: Send {
    /// Opcodes of packets, other than the transport's own, that shims send each other. The QP takes
    /// such packets, and they come to [`Shim::incoming`]; the transport never sees them. They must
    /// be opcodes that `wire` knows.
    fn opcodes(&self, transport: &TransportDescriptor) -> OpcodeSet {
        let _ = transport;
        OpcodeSet::EMPTY
    }

    /// Packets that one packet may become, and that may be sent at a timeout. There is room for as
    /// many when [`Shim::outgoing`] and [`Shim::handle_timeout`] are called. Whatever more a shim
    /// sends, it asks [`ShimOut::room`] for first. A shim's number does not change.
    fn max_out(&self) -> usize {
        1
    }

    /// The QP is ready to receive: a connection begins, and nothing is left of the one before.
    fn started(&mut self, now: Time, peer: &ShimPeer) {
        let _ = (now, peer);
    }

    /// The QP has failed or was reset: let go of everything, until a connection begins again.
    fn stopped(&mut self) {}

    /// How many packets the transport may send before the shim looks at them ([`Shim::passed`]).
    /// None, the default, means that each goes through [`Shim::outgoing`], which may change it or
    /// keep it. A shim that only watches does better with several at a time. That is possible where
    /// it is alone: in a chain with others each packet goes through [`Shim::outgoing`]
    /// nevertheless.
    fn run_len(&self) -> u32 {
        0
    }

    /// The transport has sent [`ShimOut::run`]: as many packets as the shim said, or fewer where a
    /// message or the QP's turn ends. Returns how many may go before the next call.
    fn passed(&mut self, now: Time, out: &mut ShimOut<'_>) -> u32 {
        let _ = (now, out);
        self.run_len()
    }

    /// The transport, or a shim inside of this one, sends a packet: pass it on with
    /// [`ShimOut::send`], and add to it. Packets that the shim has passed as a run do not come
    /// here.
    fn outgoing(&mut self, now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        let _ = now;
        out.send(packet);
    }

    /// Whether a packet with one of [its opcodes](Shim::opcodes) would change nothing, so that its
    /// ICRC need not be checked. Only the outermost shim is asked: others have not seen the packet
    /// yet.
    fn ignores(&mut self, packet: &PacketView<'_>) -> bool {
        let _ = packet;
        false
    }

    /// Whether a packet is to go up as it is, at once, and changes nothing that
    /// [`Shim::poll_timeout`] depends on: the quick way for packets in order. All others go through
    /// [`Shim::incoming`].
    fn follows(&mut self, packet: &PacketView<'_>) -> bool {
        let _ = packet;
        false
    }

    /// [`Shim::follows`] for packets from the middle of a message, side by side, `len` bytes each,
    /// BTH to ICRC, which have no other headers and no pad, and differ in their PSNs only, each
    /// being one more than the last. Returns how many of them are to go up, from the first on.
    fn follows_run(&mut self, packets: &[u8], len: usize) -> usize {
        let _ = (packets, len);
        0
    }

    /// A packet has arrived, its ICRC checked: hand `up` what the transport, and the shims inside
    /// of this one, shall see, in order. Packets with [its opcodes](Shim::opcodes) come here too,
    /// and go no further.
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
