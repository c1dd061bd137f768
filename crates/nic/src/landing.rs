//! Landings: a destination for single-packet WRITEs with immediate other than a completion queue.
//!
//! A message sent as one WRITE per packet would cost its receiver a work request and a completion
//! per packet. The NIC calls a landing for each packet instead, while handling it, as hardware
//! would offload to an accelerator beside the NIC.
//!
//! Every packet must carry a valid key, even one without payload: addresses, QP numbers and PSNs
//! can be guessed, and a landing trusts that a packet comes from the peer.

use bowline_wire::Qpn;

/// A packet that its landing has not been notified of yet.
///
/// Payload may be written with streaming stores, which other threads see in any order until a store
/// fence. A fence per packet would cost what streaming gains, so landings are notified of packets
/// that arrived together after one fence for all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) qpn: Qpn,
    pub(crate) imm: u32,
    pub(crate) bytes: u32,
}

/// Notified of every packet that a QP's peer has landed.
pub trait Landing: Send {
    /// `bytes` have been written to memory, and arrived with `imm`. The write is visible to this
    /// call; publish it to other threads with release ordering.
    fn landed(&mut self, imm: u32, bytes: u32);
}
