//! Which scheme a message gets if the connection chooses, and the basis of that choice.

use bowline_nic::Time;

use super::shape::Shape;
use super::{ReliableQp, WriteId};
use crate::scheme::{ChoiceCx, Decision, KnownPath};

/// Chunk counts of finished messages.
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
    /// The scheme for a message that asks for `asked`: that one, unless it leaves the choice open.
    pub(super) fn choose(&mut self, now: Time, id: WriteId, shape: &Shape, asked: usize) -> usize {
        let path = self.known_path();
        let Some(chooser) = &mut self.choosers[asked] else { return asked };
        let choice = chooser.choose(&ChoiceCx { shape, schemes: &self.config.schemes, path });
        // Another chooser would have to choose in turn.
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

    /// Counts the losses of finished messages: chunks that were retransmitted, and those that the
    /// receiver reports to have reconstructed from parity.
    pub(super) fn count_losses(&mut self, recovered: u64) {
        let Repaired { chunks, resent } = std::mem::take(&mut self.repaired);
        let lost = resent.saturating_add(self.losses.on_recovered(recovered));
        let sent = chunks.saturating_add(resent);
        self.losses.on_chunks(sent, lost.min(sent));
    }
}
