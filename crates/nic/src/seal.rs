//! The interface of packet protection, which seals a QP's packets after all of its shims, and opens
//! them before any of them.
//!
//! A sealed packet has a header of its own ([`SealedHeader`](bowline_wire::SealedHeader)), then the
//! whole packet from BTH to pad as ciphertext, a tag, and an ICRC field that is neither computed
//! nor checked. The two halves belong to a connection: they move with it between NICs, so that no
//! counter is used twice, and end with it.

use crate::time::Time;

/// Seals the packets of one direction of a connection.
pub trait SealPackets: Send {
    /// Sets the time, before packets are sealed.
    fn set_time(&mut self, now: Time);

    /// Seals a packet in place. `packet` begins with space for a
    /// [`SealedHeader`](bowline_wire::SealedHeader) and ends with space for a tag of
    /// [`SEALED_TAG_LEN`](bowline_wire::SEALED_TAG_LEN); between them is the packet, BTH to pad.
    ///
    /// Every call uses a new counter, even for a retransmitted packet.
    fn seal(&mut self, packet: &mut [u8]);
}

/// Opens the packets of one direction of a connection.
pub trait OpenPackets: Send {
    /// Opens `packet`, sealed header to tag, into `out`, which is as long as the plaintext. Unless
    /// it succeeds, the contents of `out` must not be used.
    fn open(&mut self, now: Time, packet: &[u8], out: &mut [u8]) -> Result<(), Unopened>;
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It is not sealed, or too short.
    NotSealed,
    /// Its epoch's key is gone, or its epoch is too far ahead.
    Epoch,
    /// A replay, or too old to tell.
    Replayed,
    /// Its tag is wrong.
    Forged,
}

/// Both halves of a connection's protection; see [`Nic::seal_qp`](crate::Nic::seal_qp).
pub struct PacketSeal {
    /// For what the QP sends.
    pub sealer: Box<dyn SealPackets>,
    /// For what it receives.
    pub opener: Box<dyn OpenPackets>,
}
