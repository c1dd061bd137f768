//! The report of a run, and whether its results are valid.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Counts of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Reads of the device: packets, superpackets counted once.
    pub packets: u64,
    /// Packets as on the wire.
    pub segments: u64,
    /// Bytes of these, IP headers included.
    pub bytes: u64,
    /// Segments lost by a random draw.
    pub lost: u64,
    /// Segments dropped because the link's queue was full.
    pub tail_drops: u64,
    /// Segments that arrived twice.
    pub duplicated: u64,
    /// Segments delayed so that others overtook them.
    pub reordered: u64,
    /// Segments that arrived with a wrong bit.
    pub corrupted: u64,
    /// Segments that arrived with a mark: congestion experienced.
    pub marked: u64,
    /// Segments handed to the far end.
    pub released: u64,
    /// Writes that this took.
    pub writes: u64,
    /// Most bytes that waited for transmission.
    pub peak_queue_bytes: u64,
    /// Mean queue length at the arrival of a segment.
    pub mean_queue_bytes: u64,
    /// When a segment last found a full queue, in milliseconds since the start.
    pub last_tail_drop_ms: Option<u64>,
    /// CPU time that the far end's kernel took over packets, within the emulator's thread.
    pub far_end_busy_ns: u64,
    /// Packets that the emulator had no memory for: a fault of the emulator, not of the link.
    pub overflows: u64,
    /// Packets that the far end's device refused.
    pub refused_writes: u64,
    /// Packets that could not be parsed.
    pub malformed: u64,
    /// Packets that the sending device dropped because the emulator did not read in time.
    pub device_drops: u64,
}

/// How late segments left.
#[derive(Clone, Debug)]
pub struct Lateness {
    histogram: Histogram<u64>,
}

impl Lateness {
    const MAX_NS: u64 = 100_000_000_000;

    pub(crate) fn new() -> Lateness {
        let histogram = Histogram::new_with_max(Lateness::MAX_NS, 2);
        Lateness { histogram: histogram.expect("the bounds are constants that fit") }
    }

    pub(crate) fn log(&mut self, late_ns: u64, segments: u64) {
        self.histogram.saturating_record_n(late_ns.clamp(1, Lateness::MAX_NS), segments);
    }

    /// The lateness that this fraction of the segments stayed below.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        if self.histogram.is_empty() { 0 } else { self.histogram.value_at_quantile(quantile) }
    }
}

/// One direction of a run.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    /// The link, as text.
    pub link: String,
    /// What happened.
    #[serde(flatten)]
    pub counters: Counters,
    /// Median lateness of release.
    pub late_p50_us: f64,
    /// 99th percentile of it.
    pub late_p99_us: f64,
    /// The worst.
    pub late_max_us: f64,
    /// Upper bound of the 99th percentile of how late packets were read from the device.
    pub read_late_p99_us: f64,
    /// CPU time that the direction's thread took, the far end's share of the protocol included.
    pub cpu_s: f64,
}

/// Both directions of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How long the link was up.
    pub seconds: f64,
    /// Whether TCP superpackets passed through whole.
    pub tso: bool,
    /// The same for UDP; see `tso`.
    pub uso: bool,
    /// MTU of both devices.
    pub mtu: u32,
    /// From left to right.
    pub to_right: DirectionReport,
    /// From right to left.
    pub to_left: DirectionReport,
}

impl Report {
    /// Why the results are not valid, given a limit for the 99th percentile of lateness; `None` if
    /// they are.
    pub fn refusal(&self, late_limit: Duration) -> Option<String> {
        let limit_us = late_limit.as_secs_f64() * 1e6;
        [("to the right", &self.to_right), ("to the left", &self.to_left)].into_iter().find_map(
            |(way, direction)| {
                let c = &direction.counters;
                let own = c.overflows + c.refused_writes + c.device_drops;
                let (left, taken) = (direction.late_p99_us, direction.read_late_p99_us);
                if left > limit_us || taken > limit_us {
                    return Some(format!(
                        "packets {way} were taken late by {taken:.0} µs and left late by {left:.0} \
                         (99th percentiles), allowed are {limit_us:.0}; the machine was too busy, \
                         or the rate too high for it"
                    ));
                }
                (own > 0).then(|| {
                    format!(
                        "the emulator itself dropped {own} packets {way}: {} read too late, {} \
                         without memory, {} refused by the far end",
                        c.device_drops, c.overflows, c.refused_writes
                    )
                })
            },
        )
    }
}
