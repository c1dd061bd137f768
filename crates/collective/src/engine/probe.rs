//! Recovery of lost control messages.
//!
//! If nothing is sent after a lost message, or if the receiver's NAK, which it sends only once, is
//! lost, RC detects the loss by its timer. That timer is meant for dead ranks and is far longer
//! than an operation. So messages that are not acknowledged within the usual time are retransmitted
//! earlier.
//!
//! At the end of an operation nothing else is in flight, and even that costs a round trip for each
//! loss. So on long paths the last control messages are repeated without waiting for an ACK.

use bowline_nic::Time;

use super::peer::Posted;
use super::{Engine, Peer, Post};
use crate::Rank;

/// How long to wait for an ACK: while the round trip is unknown, at least, and at most.
const FIRST_WAIT_NS: u64 = 5_000_000;
const MIN_WAIT_NS: u64 = 200_000;
const MAX_WAIT_NS: u64 = 250_000_000;
/// How often the last control messages are repeated, and after which part of a round trip. Another
/// copy is lost as often as the first one, so two of them leave one loss in a million at 1 %.
const REPEATS: u8 = 2;
const REPEAT_SHARE: u64 = 8;
/// More bytes than this are not repeated: they would delay what comes behind them.
const MAX_REPEAT_BYTES: u64 = 64 << 10;

impl Peer {
    /// How long to wait for an ACK. The time grows with each probe.
    fn wait_ns(&self) -> u64 {
        let first = match self.rtt_ns {
            0 => FIRST_WAIT_NS,
            // As in TCP (RFC 6298), but at most two round trips.
            rtt_ns => {
                let late_ns = (4 * self.rtt_deviation_ns).clamp(rtt_ns / 4, rtt_ns);
                rtt_ns + late_ns + MIN_WAIT_NS
            }
        };
        first.saturating_mul(1 << self.probes.min(10)).min(MAX_WAIT_NS)
    }

    /// When to check for the ACK of the oldest post.
    fn probes_at(&self) -> Time {
        let Some((_, at)) = self.posted.front() else { return Time::NEVER };
        self.probed_at.max(*at).plus_nanos(self.wait_ns())
    }

    /// How long to wait before repeating the last control messages; `None` where a round trip is so
    /// short that waiting for the ACK is as good.
    fn repeat_ns(&self) -> Option<u64> {
        Some(self.rtt_ns / REPEAT_SHARE).filter(|ns| *ns >= MIN_WAIT_NS)
    }

    /// Repeats what is not acknowledged, soon.
    fn plan_repeats(&mut self, now: Time) {
        if let Some(ns) = self.repeat_ns().filter(|_| !self.posted.is_empty()) {
            self.repeats_left = REPEATS;
            self.repeats_at.get_or_insert(now.plus_nanos(ns));
        }
    }

    /// A repetition is due. Returns whether there is anything to repeat.
    fn repeat(&mut self, now: Time) -> bool {
        self.repeats_left = self.repeats_left.saturating_sub(1);
        let repeats = self.repeats_left > 0 && !self.posted.is_empty();
        let next = self.repeat_ns().filter(|_| repeats);
        self.repeats_at = next.map(|ns| now.plus_nanos(2 * ns));
        !self.posted.is_empty() && self.repair_bytes() <= MAX_REPEAT_BYTES
    }

    /// The oldest post has been acknowledged.
    pub(super) fn acknowledge(&mut self, now: Time) -> Option<Posted> {
        let (posted, at) = self.posted.pop_front()?;
        let sample_ns = now.nanos_since(at).max(1);
        if self.probes == 0 {
            self.time(sample_ns);
        }
        (self.probes, self.probed_at) = (0, now);
        Some(posted)
    }

    fn time(&mut self, sample_ns: u64) {
        if self.rtt_ns == 0 {
            (self.rtt_ns, self.rtt_deviation_ns) = (sample_ns, sample_ns / 2);
            return;
        }
        let deviation_ns = self.rtt_ns.abs_diff(sample_ns);
        self.rtt_deviation_ns = (3 * self.rtt_deviation_ns + deviation_ns) / 4;
        self.rtt_ns = ((7 * self.rtt_ns + sample_ns) / 8).max(1);
    }
}

impl Engine {
    /// Records a work request over RC.
    pub(super) fn posted(&mut self, to: Rank, what: Posted) {
        let now = self.now;
        let watched = self.config.express_slots > 0 && self.failure.is_none();
        let peer = self.peer(to);
        peer.posted.push_back((what, now));
        if watched && peer.posted.len() == 1 {
            let at = peer.probes_at();
            self.next_probe = self.next_probe.min(at);
        }
        self.repeat_last(to);
    }

    /// Plans to repeat what is in flight over RC to a peer, if nothing more follows over XP.
    pub(super) fn repeat_last(&mut self, to: Rank) {
        let now = self.now;
        if self.config.express_slots == 0 || self.failure.is_some() {
            return;
        }
        let peer = self.peer(to);
        if peer.express.outbox.is_at_its_end() {
            peer.plan_repeats(now);
            let at = peer.repeats_at.unwrap_or(Time::NEVER);
            self.next_probe = self.next_probe.min(at);
        }
    }

    /// Retransmits what has not been acknowledged in time.
    pub(super) fn probe(&mut self, now: Time) {
        if self.next_probe > now {
            return;
        }
        self.next_probe = Time::NEVER;
        for rank in self.others() {
            let Some(peer) = &mut self.peers[rank as usize] else { continue };
            if peer.has_left || peer.is_broken {
                continue;
            }
            let is_late = peer.probes_at() <= now;
            if is_late {
                peer.probes += 1;
                peer.probed_at = now;
            }
            let is_last = peer.repeats_at.is_some_and(|at| at <= now) && peer.repeat(now);
            if is_late || is_last {
                self.local.push_back(Post::Resend { to: rank });
            }
            let next = peer.probes_at().min(peer.repeats_at.unwrap_or(Time::NEVER));
            self.next_probe = self.next_probe.min(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_round_trip_and_doubles() {
        let mut peer = Peer::default();
        assert_eq!(peer.probes_at(), Time::NEVER);
        let at = Time::from_micros(100);
        peer.posted.extend([(Posted::Note, at), (Posted::Note, at)]);
        assert_eq!(peer.probes_at(), at.plus_nanos(FIRST_WAIT_NS));
        assert_eq!(peer.acknowledge(Time::from_micros(140)), Some(Posted::Note));
        assert_eq!(peer.rtt_ns, 40_000);
        assert_eq!(peer.probes_at(), Time::from_micros(140 + 80 + 200));
        (peer.probes, peer.probed_at) = (1, Time::from_micros(500));
        assert_eq!(peer.probes_at(), Time::from_micros(500 + 2 * 280));
        assert_eq!(peer.acknowledge(Time::from_millis(90)), Some(Posted::Note));
        assert_eq!(peer.rtt_ns, 40_000, "nobody knows what was acknowledged");
        assert_eq!((peer.probes, peer.acknowledge(at)), (0, None));
    }

    #[test]
    fn the_last_messages_on_a_long_path_are_repeated_twice() {
        let mut peer = Peer::default();
        let at = Time::from_millis(7);
        for rtt_ns in [0, 1_000_000] {
            peer.rtt_ns = rtt_ns;
            peer.posted = [(Posted::Note, at)].into();
            peer.plan_repeats(at);
            assert_eq!(peer.repeats_at, None, "unknown, or short");
        }
        peer.rtt_ns = 8_000_000;
        peer.plan_repeats(at);
        assert_eq!(peer.repeats_at, Some(Time::from_millis(8)));
        peer.plan_repeats(at.plus_nanos(500_000));
        assert_eq!(peer.repeats_at, Some(Time::from_millis(8)), "what follows does not delay it");
        assert!(peer.repeat(Time::from_millis(8)));
        assert_eq!(peer.repeats_at, Some(Time::from_millis(10)));
        assert!(peer.repeat(Time::from_millis(10)));
        assert_eq!(peer.repeats_at, None);
        let repair = Posted::Repair { number: 0, bytes: 70_000 };
        peer.posted.push_back((repair, at));
        peer.plan_repeats(at);
        assert!(!peer.repeat(Time::from_millis(8)), "too much to send twice");
        peer.posted.clear();
        assert!(!peer.repeat(Time::from_millis(10)), "all is acknowledged");
        assert_eq!(peer.repeats_at, None);
        peer.plan_repeats(at);
        assert_eq!(peer.repeats_at, None);
    }

    #[test]
    fn a_steady_round_trip_is_not_waited_for_twice() {
        let mut peer = Peer::default();
        for _ in 0..50 {
            peer.time(10_000_000);
        }
        assert_eq!(peer.wait_ns(), 12_500_000 + MIN_WAIT_NS);
        for turn in 0..50 {
            peer.time(if turn % 2 == 0 { 5_000_000 } else { 15_000_000 });
        }
        assert_eq!(peer.wait_ns(), 2 * peer.rtt_ns + MIN_WAIT_NS, "one that varies is");
    }
}
