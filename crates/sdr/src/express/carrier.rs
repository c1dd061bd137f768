//! What the protocol asks of a NIC.

use bowline_nic::{ImmSeries, Remote};

use super::grant::GRANT_LEN;

/// Consecutive fragments of one message.
#[derive(Clone, Copy, Debug)]
pub struct Fragments<P> {
    /// Where the message begins in local memory.
    pub place: P,
    /// First byte of them within the message.
    pub offset: u32,
    /// Bytes of all of them; a fragment has one MTU, the last one what is left.
    pub len: u32,
    /// How many.
    pub count: u32,
    /// Where the first of them goes.
    pub remote: Remote,
    /// The immediate of each.
    pub imms: ImmSeries,
}

/// An unreliable connection, memory with keys that can be revoked, and a control channel.
pub trait Carrier {
    /// A place in local memory.
    type Place: Copy;

    /// Begins to give the peer the right to write `len` bytes, for receive `number`. The key must
    /// be one that was not in use of late. [`CarrierEvent::Opened`] follows.
    fn open(&mut self, number: u64, place: Self::Place, len: u32);

    /// Begins to take the right back. [`CarrierEvent::Revoked`] follows, once no packet can be
    /// placed any more and [`CarrierEvent::Landed`] has told of all that were.
    fn revoke(&mut self, number: u64);

    /// Sends fragments, each as a WRITE with immediate of one packet, and returns how many of them,
    /// from the first on, it has taken. [`CarrierEvent::Sent`] follows, in order, when they have
    /// left.
    fn write(&mut self, fragments: &Fragments<Self::Place>) -> u32;

    /// Sends a message over the control channel, which loses nothing and keeps the order.
    fn tell(&mut self, message: &[u8; GRANT_LEN]);

    /// What has happened.
    fn next_event(&mut self) -> Option<CarrierEvent>;
}

/// Something that happened to a [`Carrier`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarrierEvent {
    /// The peer may write the memory of a receive.
    Opened {
        /// The receive's number.
        number: u64,
        /// Address and key, as the peer must use them.
        remote: Remote,
    },
    /// The peer may write it no longer.
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
    /// The peer's control message.
    Control(Vec<u8>),
    /// The connection is of no use any more.
    Failed,
}
