//! Where single-packet WRITEs with immediate go instead of a completion queue.
//!
//! A message that is sent as one WRITE per packet would cost its receiver a work request and a
//! completion for every packet. A landing is told of each right where the packet is handled, which
//! is what hardware would leave to an accelerator beside the NIC.
//!
//! Every packet must carry a key that checks, also one without payload: addresses, QP numbers and
//! packet numbers can be guessed, and a landing takes a packet as word from the peer.

use bowline_wire::Qpn;

/// A packet that a landing has not been told of.
///
/// Payload may be streamed past the caches, and others see it in any order until it has settled. To
/// settle after every packet would cost what streaming gains: landings hear of packets that arrived
/// together when all of them have settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) qpn: Qpn,
    pub(crate) imm: u32,
    pub(crate) bytes: u32,
}

/// Told of every packet that a QP's peer has landed.
pub trait Landing: Send {
    /// `bytes` have been written to memory, and came with `imm`. What the write made visible to
    /// this call must be made visible to others with release ordering.
    fn landed(&mut self, imm: u32, bytes: u32);
}
