//! What the storm over SDR exercised.

use bowline_sdr::{LandingStats, PathStats, ReliableStats};

/// What was exercised, as the applications counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SdrCoverage {
    /// Reliable messages that arrived.
    pub received: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Reliable messages that failed at their sender.
    pub failed_writes: u64,
    /// Reliable messages that failed at their receiver.
    pub failed_receives: u64,
    /// Chunks sent again.
    pub chunks_resent: u64,
    /// Chunks computed from parity.
    pub chunks_recovered: u64,
    /// Messages without a scheme.
    pub plain: u64,
    /// Messages that were completed before all of them had arrived.
    pub plain_early: u64,
    /// Receives that had to wait for their ID.
    pub no_room: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets that arrived after their message was over.
    pub late: u64,
    /// Connections that have measured their round trip.
    pub timed_paths: u64,
}

impl SdrCoverage {
    pub(super) fn add_reliable(&mut self, stats: &ReliableStats, path: &PathStats) {
        self.chunks_resent += stats.chunks_resent;
        self.chunks_recovered += stats.chunks_recovered;
        self.timed_paths += u64::from(path.rtt_ns.is_some());
        self.add_landing(&stats.landing);
    }

    pub(super) fn add_landing(&mut self, stats: &LandingStats) {
        self.duplicates += stats.duplicates;
        self.late += stats.late;
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("messages received", self.received),
            ("bytes received", self.received_bytes),
            ("failed writes", self.failed_writes),
            ("failed receives", self.failed_receives),
            ("chunks retransmitted", self.chunks_resent),
            ("chunks recovered", self.chunks_recovered),
            ("messages without scheme", self.plain),
            ("completed early", self.plain_early),
            ("receives refused: no space", self.no_room),
            ("duplicate packets", self.duplicates),
            ("late packets", self.late),
            ("round trips timed", self.timed_paths),
        ]
        .into_iter()
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &SdrCoverage) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.failed_writes += other.failed_writes;
        self.failed_receives += other.failed_receives;
        self.chunks_resent += other.chunks_resent;
        self.chunks_recovered += other.chunks_recovered;
        self.plain += other.plain;
        self.plain_early += other.plain_early;
        self.no_room += other.no_room;
        self.duplicates += other.duplicates;
        self.late += other.late;
        self.timed_paths += other.timed_paths;
    }
}
