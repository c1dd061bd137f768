//! Control messages of the reliable layer, many to a packet.
//!
//! Short messages that are in flight together begin and finish together. One packet for each
//! control message about them would cost more than their data does.

use bowline_nic::{Rnic, Time};

use super::wire::Message;
use crate::control::MAX_CONTROL;
use crate::qp::SdrQp;

/// Bytes before each message: its length.
pub(super) const PREFIX: usize = 2;

/// Messages waiting to be sent together, each after its length. The order is kept.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
}

impl Outbox {
    /// Adds a message; if it does not fit, those before it are sent first.
    pub(super) fn push(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        sdr: &mut SdrQp,
        message: Message<'_>,
    ) {
        let start = self.bytes.len();
        self.append(message);
        if self.bytes.len() > MAX_CONTROL && start > 0 {
            sdr.send_control(nic, now, &self.bytes[..start]);
            self.bytes.drain(..start);
        }
    }

    /// Sends what is waiting.
    pub(super) fn flush(&mut self, nic: &mut dyn Rnic, now: Time, sdr: &mut SdrQp) {
        if !self.bytes.is_empty() {
            sdr.send_control(nic, now, &self.bytes);
            self.bytes.clear();
        }
    }

    /// Whether nothing is waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn append(&mut self, message: Message<'_>) {
        let start = self.bytes.len();
        self.bytes.extend([0; PREFIX]);
        message.emit(&mut self.bytes);
        let len = (self.bytes.len() - start - PREFIX) as u16;
        self.bytes[start..start + PREFIX].copy_from_slice(&len.to_be_bytes());
    }
}

/// The messages in a packet. Truncation ends them, and malformed ones are skipped.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let each = std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<PREFIX>()?;
        let (message, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        bytes = rest;
        Some(message)
    });
    each.filter_map(Message::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_in_order_whatever_is_between_them() {
        let mut outbox = Outbox::default();
        let all = [Message::Finished(9, 8, 7), Message::ToSender(2, b"abc"), Message::Aborted(4)];
        all.into_iter().for_each(|message| outbox.append(message));
        assert!(messages(&outbox.bytes).eq(all));
        for cut in 0..outbox.bytes.len() {
            let whole = messages(&outbox.bytes[..cut]).count();
            assert!(whole < all.len(), "{cut}");
        }
        let mut strange = vec![0, 1, 77, 0, 0];
        strange.extend(&outbox.bytes);
        assert!(messages(&strange).eq(all), "an unknown and an empty one are passed over");
    }
}
