//! Messages between agents: datagrams of one size, which can be lost, duplicated and delayed.

use bowline_nic::Resume;
use bowline_wire::{Psn, Qpn};

use crate::rail::Rail;

/// Length of a message in bytes.
pub(crate) const LEN: usize = 48;

const MAGIC: u16 = 0xb0f1;
const VERSION: u8 = 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sender has moved, or has begun to, and withholds its sends until it is answered.
    Move,
    /// The sender has moved.
    Moved,
    /// The sender has drained and wants to return to the default rail.
    Return,
    /// The sender could not drain, and stays.
    Busy,
    /// The sender is draining for the receiver's return.
    Draining,
    /// Asks whether the peer is reachable on this rail.
    Probe,
    /// Answers a probe.
    Echo,
}

/// In the order of their numbers. A receiver drops messages of a kind that it does not know.
const KINDS: [Kind; 7] =
    [Kind::Move, Kind::Moved, Kind::Return, Kind::Busy, Kind::Probe, Kind::Echo, Kind::Draining];

/// A message about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// The receiver's default QPN.
    pub(crate) to: Qpn,
    /// The receiver's token.
    pub(crate) token: u128,
    pub(crate) epoch: u32,
    /// The number of the attempt or probe. The answer repeats it.
    pub(crate) number: u32,
    /// The rail that the sender's end of the connection is on.
    pub(crate) rail: Rail,
    /// Which of the sender's ports are down.
    pub(crate) ports_down: [bool; 2],
    /// What the sender has received, and expects next.
    pub(crate) resume: Resume,
}

impl Message {
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..2].copy_from_slice(&MAGIC.to_be_bytes());
        out[2] = VERSION;
        out[3] = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u8;
        out[4..8].copy_from_slice(&self.to.get().to_be_bytes());
        out[8..24].copy_from_slice(&self.token.to_be_bytes());
        out[24..28].copy_from_slice(&self.epoch.to_be_bytes());
        out[28..32].copy_from_slice(&self.number.to_be_bytes());
        out[32] = self.rail.index() as u8;
        out[33] = u8::from(self.ports_down[0]) | u8::from(self.ports_down[1]) << 1;
        out[36..40].copy_from_slice(&self.resume.psn.get().to_be_bytes());
        out[40..48].copy_from_slice(&self.resume.received.to_be_bytes());
        out
    }

    /// Decodes a message; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8; LEN]) -> Option<Message> {
        let be32 = |at: usize| bytes[at..at + 4].iter().fold(0, |n, b| n << 8 | u32::from(*b));
        if bytes[..2] != MAGIC.to_be_bytes() || bytes[2] != VERSION || bytes[33] > 3 {
            return None;
        }
        let (to, psn) = (be32(4), be32(36));
        if to > 0xff_ffff || psn > 0xff_ffff {
            return None;
        }
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[8..24]);
        let mut received = [0; 8];
        received.copy_from_slice(&bytes[40..48]);
        Some(Message {
            kind: *KINDS.get(usize::from(bytes[3]))?,
            to: Qpn::new(to),
            token: u128::from_be_bytes(token),
            epoch: be32(24),
            number: be32(28),
            rail: Rail::from_index(bytes[32])?,
            ports_down: [bytes[33] & 1 != 0, bytes[33] & 2 != 0],
            resume: Resume { received: u64::from_be_bytes(received), psn: Psn::new(psn) },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(bytes: [u8; LEN]) {
            // Most random bytes are not a message: make them look like one.
            let mut likely = bytes;
            likely[..4].copy_from_slice(&[0xb0, 0xf1, 1, bytes[3] % 8]);
            (likely[4], likely[36], likely[32], likely[33]) = (0, 0, bytes[32] % 3, bytes[33] % 4);
            prop_assert_eq!(Message::decode(&bytes), None);
            if let Some(message) = Message::decode(&likely) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            }
        }
    }
}
