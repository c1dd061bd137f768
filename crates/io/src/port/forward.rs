//! Sending received datagrams on without copying them.

use std::net::IpAddr;

use bowline_nic::FrameMeta;

use super::FrameSink;

/// Takes what a port received in order to send it on. A port that has the datagrams of a call in
/// its own memory passes all of them at once; any other passes frames, as to every sink.
pub trait Forwarder: FrameSink {
    /// Takes the datagrams of one call.
    fn round(&mut self, round: &mut dyn Round);
}

/// The datagrams of one call, in the port's memory. They may be rewritten there, and sent from
/// there any number of times.
pub trait Round {
    /// Number of datagrams.
    fn count(&self) -> usize;

    /// The envelope of a datagram's first frame, and the length of all its frames but the last,
    /// which may be shorter; `None` if the datagram is unusable.
    fn envelope(&self, datagram: usize) -> Option<(FrameMeta, usize)>;

    /// The frames of a datagram, one after the other.
    fn bytes(&mut self, datagram: usize) -> &mut [u8];

    /// Sends datagrams as they are now, in order; returns how many left. The port could not send
    /// the next one in this way, for any reason: it is to be copied into a batch, and sent again.
    fn send(&mut self, to: &[Onward]) -> usize;
}

/// Where a received datagram goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Onward {
    /// Its number in the round.
    pub datagram: usize,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination port.
    pub dst_port: u16,
    /// TOS or traffic class.
    pub tos: u8,
    /// Length of all frames but the last.
    pub frame_len: usize,
}
