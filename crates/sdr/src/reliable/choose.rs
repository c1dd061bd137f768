//! Which scheme a message takes, where that is left to the connection, and what the choice rests
//! on.

use bowline_nic::Time;

use super::shape::Shape;
use super::{ReliableQp, WriteId};
use crate::scheme::{ChoiceCx, Decision, KnownPath};

/// Chunks of messages that have finished.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repaired {
    chunks: u64,
    resent: u64,
}

impl Repaired {
    pub(super) fn add(&mut self, chunks: u64, resent: u64) {
        self.chunks += chunks;
        self.resent += resent;
    }
}

impl ReliableQp {
    /// The scheme for a message that asks for `asked`: that one, unless it leaves the choice.
    pub(super) fn choose(&mut self, now: Time, id: WriteId, shape: &Shape, asked: usize) -> usize {
        let path = self.known_path();
        let Some(chooser) = &mut self.choosers[asked] else { return asked };
        let choice = chooser.choose(&ChoiceCx { shape, schemes: &self.config.schemes, path });
        // Another chooser would have to choose again.
        let names_a_scheme = self.choosers.get(choice.scheme).is_some_and(Option::is_none);
        let chosen = if names_a_scheme { choice.scheme } else { asked };
        let bytes = shape.len();
        self.decisions.add(Decision { at: now, id, messages: 1, bytes, path, choice });
        chosen
    }

    fn known_path(&self) -> KnownPath {
        let path = self.sdr.path();
        KnownPath {
            rtt_ns: path.smoothed_rtt_ns,
            bandwidth_bps: self.config.sdr.rate_bps.map(|bps| bps as f64).or(path.bandwidth_bps),
            packet_loss: self.losses.packet_loss(),
        }
    }

    /// Counts what the messages that have finished had lost: chunks that were sent again, and those
    /// that the receiver says it has computed from parity.
    pub(super) fn count_losses(&mut self, recovered: u64) {
        let Repaired { chunks, resent } = std::mem::take(&mut self.repaired);
        let lost = resent.saturating_add(self.losses.on_recovered(recovered));
        let sent = chunks.saturating_add(resent);
        self.losses.on_chunks(sent, lost.min(sent));
    }
}
