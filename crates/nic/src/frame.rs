//! Metadata of a received datagram.

use core::net::IpAddr;

/// The envelope of a received frame. The frame itself is the UDP payload: BTH to ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// Who sent it.
    pub src: IpAddr,
    /// To which of our addresses.
    pub dst: IpAddr,
    /// The sender's UDP port: any is legal, and the ICRC covers it.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class; the low two bits are ECN.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit, as a UD receiver sees it in the GRH.
    pub ttl: u8,
    /// What is known of the IPv4 identification, which the ICRC covers.
    pub ip_id: IpId,
}

impl FrameMeta {
    /// Whether a switch marked the packet: congestion experienced.
    #[inline]
    pub fn congestion_experienced(&self) -> bool {
        self.tos & ECN_MASK == ECN_CE
    }
}

/// The two ECN bits of a TOS byte.
pub const ECN_MASK: u8 = 0b11;
/// ECN-capable transport, codepoint ECT(0): what our data packets carry when ECN is on.
pub const ECN_ECT0: u8 = 0b10;
/// Congestion experienced.
pub const ECN_CE: u8 = 0b11;

/// What a port knows about a packet's IPv4 identification.
///
/// A UDP socket does not show it. Bowline's own senders number the packets of a batch 0, 1, 2, …,
/// so the position in the batch is a good guess, and the few other values a batch can have are
/// accepted as well. For a foreign sender the ID is solved for, which leaves a weaker check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// The port saw the IP header (or it has no identification, as with IPv6: then 0).
    Known(u16),
    /// The port did not see it; a Bowline sender probably used this value.
    Guess(u16),
    /// Not needed: the frame came through memory, where nothing can corrupt it, and has no ICRC
    /// ([`CleanPaths`](crate::CleanPaths)).
    Unsummed,
}

impl IpId {
    /// Derives the identification of the frame that follows this one at the given distance in the
    /// same datagram.
    #[inline]
    pub fn skip(&mut self, frames: usize) {
        if let IpId::Guess(id) = self {
            *id = id.wrapping_add(frames as u16);
        }
    }
}
