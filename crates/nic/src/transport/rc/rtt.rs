//! Round-trip estimation for the retransmission timer.

use core::num::NonZeroU64;

use bowline_wire::Psn;

use crate::time::Time;

/// Round-trip estimate for the retransmission timer.
///
/// The timeout attribute is what an application expects of an empty network. When queues make the
/// round trip longer than that, a timer unaware of it retransmits the whole window, which makes the
/// queues longer still: go-back-N then spends the entire link on retransmissions. So the timer
/// never fires before twice the recent round trip.
///
/// The response to a retransmitted packet is timed from its first transmission (unlike Karn's rule,
/// which would never learn that the timeout is too short): after a loss the estimate is too long,
/// and decays.
#[derive(Debug, Default)]
pub(super) struct RttEstimate {
    peak_ns: u64,
    /// Smoothed average over packets that were sent once, for monitoring.
    smoothed_ns: Option<NonZeroU64>,
    /// The PSN after the packet being timed, and when it was first sent.
    probe: Option<(Psn, Time)>,
    /// It has been retransmitted, so the response is ambiguous.
    resent: bool,
}

/// The timer's limit, in multiples of the timeout attribute.
const MAX_STRETCH: u64 = 16;

impl RttEstimate {
    /// A packet that the peer will answer was sent for the first time.
    pub(super) fn on_sent(&mut self, now: Time, end: Psn) {
        if self.probe.is_none() {
            self.probe = Some((end, now));
            self.resent = false;
        }
    }

    /// Everything before `una` is answered. Returns a round trip if the timed packet was sent only
    /// once.
    pub(super) fn on_progress(&mut self, now: Time, una: Psn) -> Option<u64> {
        let (_, sent) = self.probe.filter(|(end, _)| !una.before(*end))?;
        self.probe = None;
        let sample = now.nanos_since(sent);
        // Up at once, down slowly.
        let decayed = self.peak_ns - self.peak_ns / 8 + sample / 8;
        self.peak_ns = decayed.max(sample);
        if self.resent {
            return None;
        }
        let smoothed = self.smoothed_ns().map_or(sample, |s| s - s / 8 + sample / 8);
        self.smoothed_ns = NonZeroU64::new(smoothed);
        Some(sample)
    }

    /// The smoothed round trip.
    pub(super) fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns.map(NonZeroU64::get)
    }

    /// Unanswered packets are retransmitted.
    pub(super) fn on_resent(&mut self) {
        self.resent = true;
    }

    /// How long to wait before retransmitting, given the timeout that the application set.
    pub(super) fn stretch(&self, timeout_ns: u64) -> u64 {
        (self.peak_ns * 2).clamp(timeout_ns, timeout_ns.saturating_mul(MAX_STRETCH))
    }
}
