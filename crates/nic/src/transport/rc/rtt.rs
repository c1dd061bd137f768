//! The round trip, as far as the retransmission timer has to know it.

use core::num::NonZeroU64;

use bowline_wire::Psn;

use crate::time::Time;

/// How long the peer's answers take, as far as the retransmission timer has to know.
///
/// The timeout attribute is what an application expects of an empty network. When queues make the
/// round trip longer than that, a timer that does not know sends the whole window again, which
/// makes the queues longer still: go-back-N then spends all of the link on repetitions. So the
/// timer never fires before twice the round trip that was seen of late.
///
/// A repeated packet's answer counts from the first time that it was sent (unlike with Karn's rule,
/// which would never learn that the timeout is too short): after a loss that is too long an
/// estimate, and decays.
#[derive(Debug, Default)]
pub(super) struct RttEstimate {
    peak_ns: u64,
    /// The usual average of packets that were sent once, for people who watch.
    smoothed_ns: Option<NonZeroU64>,
    /// The PSN behind the packet being timed, and when it was first sent.
    probe: Option<(Psn, Time)>,
    /// It has been sent again, and nobody can tell which one is answered.
    resent: bool,
}

/// The timer's limit, in multiples of the timeout attribute.
const MAX_STRETCH: u64 = 16;

impl RttEstimate {
    /// A packet was sent, for the first time, that the peer will answer.
    pub(super) fn on_sent(&mut self, now: Time, end: Psn) {
        if self.probe.is_none() {
            self.probe = Some((end, now));
            self.resent = false;
        }
    }

    /// Everything before `una` is answered. Returns a round trip if a packet was timed that was
    /// sent once.
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

    /// What is not answered is sent again.
    pub(super) fn on_resent(&mut self) {
        self.resent = true;
    }

    /// How long to wait before sending again, given what the application asked for.
    pub(super) fn stretch(&self, timeout_ns: u64) -> u64 {
        (self.peak_ns * 2).clamp(timeout_ns, timeout_ns.saturating_mul(MAX_STRETCH))
    }
}
