//! What a connection knows about its path: round trip, loss, bandwidth. Measured continuously, from
//! what control messages carry anyway.

use std::collections::VecDeque;

use bowline_nic::Time;

/// What is known about the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct PathStats {
    /// Shortest recent round trip, in nanoseconds.
    pub rtt_ns: Option<u64>,
    /// Smoothed round trip.
    pub smoothed_rtt_ns: Option<u64>,
    /// Share of packets that did not land, smoothed over some ten thousand packets.
    pub loss: f64,
    /// Rate at which packets landed while there was enough to send, in bits per second.
    pub bandwidth_bps: Option<f64>,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets known to have landed.
    pub packets_landed: u64,
}

impl PathStats {
    /// Adds the statistics of another QP that uses the same path.
    pub fn add(&mut self, other: &PathStats) {
        let packets = (self.packets_sent + other.packets_sent).max(1) as f64;
        let lost = |of: &PathStats| of.loss * of.packets_sent as f64;
        self.loss = (lost(self) + lost(other)) / packets;
        self.rtt_ns = self.rtt_ns.into_iter().chain(other.rtt_ns).min();
        self.smoothed_rtt_ns = self.smoothed_rtt_ns.or(other.smoothed_rtt_ns);
        self.bandwidth_bps = match (self.bandwidth_bps, other.bandwidth_bps) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.packets_sent += other.packets_sent;
        self.packets_landed += other.packets_landed;
    }
}

/// How long a shortest round trip stays valid.
const RTT_MEMORY_NS: u64 = 10_000_000_000;
/// Packets over which loss is smoothed.
const LOSS_WINDOW: f64 = 16_384.0;
/// Shortest time between two samples of what was sent.
const SAMPLE_NS: u64 = 200_000;
const MAX_SAMPLES: usize = 1024;

/// Keeps [`PathStats`] up to date.
#[derive(Debug, Default)]
pub(crate) struct PathMeter {
    stats: PathStats,
    rtt_seen: Time,
    /// The longest recent round trip, and its time.
    worst_rtt: (u64, Time),
    /// Packets sent by each time.
    sent: VecDeque<(Time, u64)>,
    /// The last report: packets landed, of those sent by then.
    last_report: Option<Report>,
    /// Packets sent and lost recently, with exponential decay. Reports come a little early or late,
    /// so the losses of a single one may be negative; over several that evens out.
    recent_sent: f64,
    recent_lost: f64,
    bytes_per_packet: f64,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    at: Time,
    sent: u64,
    landed: u64,
}

impl PathMeter {
    pub(crate) fn new(mtu: u32) -> PathMeter {
        PathMeter { bytes_per_packet: f64::from(mtu), ..PathMeter::default() }
    }

    pub(crate) fn stats(&self) -> PathStats {
        self.stats
    }

    /// The round trip takes about so long, as far as others can tell: good until one is timed.
    pub(crate) fn assume_rtt(&mut self, rtt_ns: u64) {
        self.stats.smoothed_rtt_ns.get_or_insert(rtt_ns);
    }

    /// A round trip was timed.
    pub(crate) fn on_rtt(&mut self, now: Time, rtt_ns: u64) {
        // Without a shortest one, what is smoothed was assumed.
        let timed = self.stats.smoothed_rtt_ns.filter(|_| self.stats.rtt_ns.is_some());
        let smoothed = timed.map_or(rtt_ns, |s| s - s / 8 + rtt_ns / 8);
        self.stats.smoothed_rtt_ns = Some(smoothed);
        let stale = now.nanos_since(self.rtt_seen) > RTT_MEMORY_NS;
        if stale || self.stats.rtt_ns.is_none_or(|min| rtt_ns <= min) {
            self.stats.rtt_ns = Some(rtt_ns);
            self.rtt_seen = now;
        }
        let (worst, seen) = self.worst_rtt;
        if rtt_ns >= worst || now.nanos_since(seen) > RTT_MEMORY_NS {
            self.worst_rtt = (rtt_ns, now);
        }
    }

    /// Recent variation of the round trip.
    pub(crate) fn jitter_ns(&self) -> u64 {
        self.worst_rtt.0.saturating_sub(self.stats.rtt_ns.unwrap_or(0))
    }

    /// `total` packets have been sent by `now`.
    pub(crate) fn on_sent(&mut self, now: Time, total: u64) {
        self.stats.packets_sent = total;
        match self.sent.back() {
            Some((at, _)) if now.nanos_since(*at) < SAMPLE_NS => {}
            _ => {
                if self.sent.len() == MAX_SAMPLES {
                    self.sent.pop_front();
                }
                self.sent.push_back((now, total));
            }
        }
    }

    /// The peer reports that `landed` packets have landed. It did so half a round trip ago, about
    /// packets that had left half a round trip earlier.
    pub(crate) fn on_landed(&mut self, now: Time, landed: u64) {
        let Some(rtt) = self.stats.smoothed_rtt_ns else { return };
        let left = Time::from_nanos(now.as_nanos().saturating_sub(rtt));
        let mut sent = None;
        while let Some((at, total)) = self.sent.front().copied().filter(|(at, _)| *at <= left) {
            sent = Some((at, total));
            self.sent.pop_front();
        }
        let Some((at, sent)) = sent else { return };
        self.stats.packets_landed = self.stats.packets_landed.max(landed);
        let report = Report { at, sent, landed };
        match self.last_report {
            // What has landed meanwhile counts towards the next report.
            Some(last) if last.sent == sent => {}
            Some(last) => {
                self.compare(last, report);
                self.last_report = Some(report);
            }
            None => self.last_report = Some(report),
        }
    }

    fn compare(&mut self, last: Report, new: Report) {
        let sent = new.sent.saturating_sub(last.sent) as f64;
        let landed = new.landed.saturating_sub(last.landed) as f64;
        let fade = (1.0 - sent / LOSS_WINDOW).max(0.0);
        self.recent_sent = self.recent_sent * fade + sent;
        self.recent_lost = self.recent_lost * fade + sent - landed;
        self.stats.loss = (self.recent_lost / self.recent_sent).clamp(0.0, 1.0);
        let seconds = new.at.nanos_since(last.at) as f64 / 1e9;
        if seconds > 0.0 {
            let bps = landed * self.bytes_per_packet * 8.0 / seconds;
            // The maximum is what the path can do; it decays, since paths change.
            let faded = self.stats.bandwidth_bps.unwrap_or(0.0) * 0.99;
            self.stats.bandwidth_bps = Some(faded.max(bps));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_is_kept_until_it_is_old() {
        let mut meter = PathMeter::new(4096);
        meter.on_rtt(Time::from_millis(1), 300);
        meter.on_rtt(Time::from_millis(2), 200);
        meter.on_rtt(Time::from_millis(3), 400);
        assert_eq!(meter.stats().rtt_ns, Some(200));
        meter.on_rtt(Time::from_millis(20_000), 500);
        assert_eq!(meter.stats().rtt_ns, Some(500));
    }

    #[test]
    fn loss_and_bandwidth_come_out() {
        let mut meter = PathMeter::new(4096);
        meter.on_rtt(Time::ZERO, 10_000_000);
        // 1000 packets per millisecond, of which one in a hundred is lost.
        for ms in 0..400 {
            let now = Time::from_millis(ms);
            meter.on_sent(now, ms * 1000);
            if ms >= 10 {
                meter.on_landed(now, (ms - 10) * 990);
            }
        }
        let stats = meter.stats();
        assert!((stats.loss - 0.01).abs() < 0.001, "{stats:?}");
        let bps = stats.bandwidth_bps.unwrap();
        assert!((bps / (990.0 * 4096.0 * 8.0 * 1000.0) - 1.0).abs() < 0.02, "{bps}");
    }
}
