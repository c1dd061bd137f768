//! Shims, which sit below a transport and see a QP's outgoing and incoming packets.
//!
//! Shims form a chain. The innermost is next to the transport, the outermost next to the port. An
//! outgoing packet passes the innermost first, an incoming one the outermost first. Whatever a shim
//! sends, passed on or added, goes through the shims outside of it; what it hands up goes through
//! those inside. So each sees the packets that its counterpart in the peer's chain has seen, and
//! the two chains must have the same order. Congestion notifications belong to the port and bypass
//! the shims.
//!
//! The ICRC is added after the outermost shim, and checked before it: a shim may change a packet
//! without updating the ICRC.

mod chain;
mod out;

use bowline_wire::{OpcodeSet, PacketView, Psn, Qpn};

pub(crate) use self::chain::Chain;
pub use self::out::{OutPacket, Run, ShimOut};
use crate::time::Time;
use crate::types::{Mtu, TransportDescriptor};

/// Sits between a QP's transport and the port, in both directions, with timers.
///
/// [`Shim::started`] comes first; the other calls follow in any order; `now` never goes back. Once
/// warmed up a shim allocates nothing per packet.
pub trait Shim: Send {
    /// Opcodes of the packets, other than the transport's own, that shims exchange. The QP accepts
    /// such packets and passes them to [`Shim::incoming`]; the transport never sees them. `wire`
    /// must know the opcodes.
    fn opcodes(&self, transport: &TransportDescriptor) -> OpcodeSet {
        let _ = transport;
        OpcodeSet::EMPTY
    }

    /// Most packets that one packet may become, and that a timeout may send. There is space for
    /// this many when [`Shim::outgoing`] and [`Shim::handle_timeout`] are called. Before sending
    /// more, a shim asks [`ShimOut::room`]. The number must not change.
    fn max_out(&self) -> usize {
        1
    }

    /// The QP is ready to receive: a connection begins. No state of an earlier one may remain.
    fn started(&mut self, now: Time, peer: &ShimPeer) {
        let _ = (now, peer);
    }

    /// The QP has failed or was reset: drop all state until a connection begins again.
    fn stopped(&mut self) {}

    /// How many packets the transport may send before the shim looks at them ([`Shim::passed`]). 0,
    /// the default, means that each goes through [`Shim::outgoing`], which may change it or hold it
    /// back. A shim that only observes is faster with several at a time. That requires a single
    /// shim: in a chain with others each packet still goes through [`Shim::outgoing`].
    fn run_len(&self) -> u32 {
        0
    }

    /// The transport has sent [`ShimOut::run`]: as many packets as the shim allowed, or fewer if a
    /// message or the QP's turn ended. Returns how many may go before the next call.
    fn passed(&mut self, now: Time, out: &mut ShimOut<'_>) -> u32 {
        let _ = (now, out);
        self.run_len()
    }

    /// The transport, or a shim inside of this one, sends a packet: pass it on with
    /// [`ShimOut::send`], and add others. Packets that were passed as a run do not come here.
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

    /// Whether a packet goes up unchanged at once, and does not affect [`Shim::poll_timeout`]: the
    /// fast path for packets in order. All others go through [`Shim::incoming`].
    fn follows(&mut self, packet: &PacketView<'_>) -> bool {
        let _ = packet;
        false
    }

    /// [`Shim::follows`] for consecutive packets from the middle of a message, `len` bytes each
    /// from BTH to ICRC, without other headers or padding. They differ only in their PSNs, which
    /// count up by one. Returns how many of them, from the first on, go up.
    fn follows_run(&mut self, packets: &[u8], len: usize) -> usize {
        let _ = (packets, len);
        0
    }

    /// A packet has arrived, and its ICRC is right: hand `up`, in order, what the transport and the
    /// inner shims are to see. Packets with [its opcodes](Shim::opcodes) come here too, and go no
    /// further.
    ///
    /// Returns whether [`Shim::poll_timeout`] may have changed.
    fn incoming(
        &mut self,
        now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool;

    /// When to call [`Shim::handle_timeout`]; a time in the past if something waits to be sent.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// The timeout has come: may send packets, and hand packets up.
    fn handle_timeout(
        &mut self,
        now: Time,
        out: &mut ShimOut<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) {
        let _ = (now, out, up);
    }
}

/// The connection that a shim serves.
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

/// A shim that changes nothing: on a clean link every other must be indistinguishable from it.
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
