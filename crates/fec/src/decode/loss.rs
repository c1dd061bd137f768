//! Loss statistics for the peer's controller.

use bowline_wire::{Psn, ReportHeader};

use super::Decoder;
use super::expect::span_of;

/// Packets counted since the connection began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    pub(crate) expected: u32,
    lost: u32,
    bursts: u32,
    pub(crate) unrepaired: u32,
    longest: u16,
}

/// Longer gaps do not count as losses: a stray packet came from far ahead.
const MAX_BURST: u32 = 1 << 12;

impl Losses {
    /// This many packets in a row are missing.
    pub(crate) fn on_burst(&mut self, packets: u32) {
        self.expected = self.expected.wrapping_add(packets);
        self.lost = self.lost.wrapping_add(packets);
        self.bursts = self.bursts.wrapping_add(1);
        self.longest = self.longest.max(u16::try_from(packets).unwrap_or(u16::MAX));
    }

    /// Losses so far; a change triggers a report.
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// Adds the counts to a report.
    pub(crate) fn report(&mut self, report: &mut ReportHeader) {
        report.expected = report.expected.wrapping_add(self.expected);
        report.lost = report.lost.wrapping_add(self.lost);
        report.bursts = report.bursts.wrapping_add(self.bursts);
        report.unrepaired = report.unrepaired.wrapping_add(self.unrepaired);
        report.longest_burst = report.longest_burst.max(core::mem::take(&mut self.longest));
    }
}

/// Runs of missing packets. Longer lists than this occur within two blocks only by chance, and then
/// the rest counts as one.
const MAX_RUNS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missing {
    pub(crate) packets: u32,
    runs: [u32; MAX_RUNS],
    count: usize,
}

impl Missing {
    fn push(&mut self, run: u32) {
        self.packets = self.packets.saturating_add(run);
        self.count = (self.count + 1).min(MAX_RUNS);
        self.runs[self.count - 1] += run;
    }

    pub(crate) fn iter_bursts(&self, f: impl FnMut(u32)) {
        self.runs[..self.count].iter().copied().for_each(f);
    }
}

impl Decoder {
    /// Packets that a gap of this many PSNs stands for. Between responses there are PSNs without
    /// one; there the gap counts as one packet.
    pub(super) fn gap_len(&self, psns: u32) -> u32 {
        if self.response || psns > MAX_BURST { 1 } else { psns }
    }

    /// The packets missing between `next` and the last one held.
    pub(super) fn missing(&self) -> Missing {
        self.missing_until(None)
    }

    /// And those missing up to `end`, where a block is known to end.
    pub(super) fn missing_until(&self, end: Option<Psn>) -> Missing {
        let mut missing = Missing::default();
        let Some(mut at) = self.next else { return missing };
        let mut gap_to = |at: Psn, psn: Psn| {
            let gap = psn.diff(at);
            if gap > 0 {
                missing.push(self.gap_len(gap as u32));
            }
        };
        for packet in self.held.iter().filter(|packet| !packet.is_ack) {
            gap_to(at, packet.psn);
            let span = packet.view().map_or(1, |view| span_of(&view, self.mtu));
            at = packet.psn.add(span);
        }
        if let Some(end) = end {
            gap_to(at, end);
        }
        missing
    }
}
