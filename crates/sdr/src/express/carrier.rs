//! What the protocol needs from a NIC.

use bowline_nic::{ImmSeries, Remote};

use super::grant::GRANT_LEN;

/// Consecutive fragments of one message.
#[derive(Clone, Copy, Debug)]
pub struct Fragments<P> {
    /// Where the message begins in local memory.
    pub place: P,
    /// First byte of them within the message.
    pub offset: u32,
    /// Bytes of all of them; a fragment has one MTU, the last one the remainder.
    pub len: u32,
    /// How many.
    pub count: u32,
    /// Where the first of them goes.
    pub remote: Remote,
    /// The immediate of each.
    pub imms: ImmSeries,
}

/// An unreliable connection, memory with revocable keys, and a control channel.
pub trait Carrier {
    /// A place in local memory.
    type Place: Copy;

    /// Starts to grant the peer the right to write `len` bytes, for receive `number`. The key must
    /// not have been in use recently. [`CarrierEvent::Opened`] follows.
    fn open(&mut self, number: u64, place: Self::Place, len: u32);

    /// Starts to revoke the right. [`CarrierEvent::Revoked`] follows, once no packet can be placed
    /// any more and [`CarrierEvent::Landed`] has reported all that were.
    fn revoke(&mut self, number: u64);

    /// Sends fragments, each as a single-packet WRITE with immediate, and returns how many of them,
    /// from the first on, it has accepted. [`CarrierEvent::Sent`] follows, in order, when they have
    /// left.
    fn write(&mut self, fragments: &Fragments<Self::Place>) -> u32;

    /// Sends a message over the control channel, which is reliable and ordered.
    fn tell(&mut self, message: &[u8; GRANT_LEN]);

    /// The next event.
    fn next_event(&mut self) -> Option<CarrierEvent>;
}

/// An event of a [`Carrier`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarrierEvent {
    /// The peer may write the memory of a receive.
    Opened {
        /// The receive's number.
        number: u64,
        /// Address and key, as the peer must use them.
        remote: Remote,
    },
    /// The peer may no longer write it.
    Revoked {
        /// The receive's number.
        number: u64,
    },
    /// A packet has been placed.
    Landed {
        /// Its immediate.
        imm: u32,
        /// Its payload.
        bytes: u32,
    },
    /// Fragments have left.
    Sent {
        /// How many.
        fragments: u32,
    },
    /// A control message from the peer.
    Control(Vec<u8>),
    /// The connection is unusable.
    Failed,
}
