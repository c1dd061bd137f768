//! The seam of packet protection: what seals a QP's packets behind all of its shims, and opens them
//! before any of them.
//!
//! A sealed packet has a header of its own ([`SealedHeader`](bowline_wire::SealedHeader)), then the
//! whole packet from BTH to pad as ciphertext, a tag, and an ICRC field that nobody computes or
//! checks. The two halves belong to a connection: they move with it between NICs, so that no
//! counter is used twice, and end with it.

use crate::time::Time;

/// Seals the packets of one direction of a connection.
pub trait SealPackets: Send {
    /// Tells the time, before packets are sealed.
    fn set_time(&mut self, now: Time);

    /// Seals a packet in place. `packet` begins with room for a
    /// [`SealedHeader`](bowline_wire::SealedHeader) and ends with room for a tag of
    /// [`SEALED_TAG_LEN`](bowline_wire::SEALED_TAG_LEN); between them is the packet, BTH to pad.
    ///
    /// Every call takes another counter, also for a packet that is sent again.
    fn seal(&mut self, packet: &mut [u8]);
}

/// Opens the packets of one direction of a connection.
pub trait OpenPackets: Send {
    /// Opens `packet`, sealed header to tag, into `out`, which is as long as what was sealed.
    /// Unless it succeeds, nothing of `out` may be used.
    fn open(&mut self, now: Time, packet: &[u8], out: &mut [u8]) -> Result<(), Unopened>;
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It is not sealed, or too short.
    NotSealed,
    /// Its key is gone, or too far ahead.
    Epoch,
    /// It came before, or too late to tell.
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
