//! Periodic results while a test runs.

use std::time::{Duration, Instant};

use bowline::Device;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::output;

/// The measurements of one interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct IntervalRow {
    from_s: f64,
    to_s: f64,
    messages: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bw_gbps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    t_typical_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
    /// Packets that this end's NIC retransmitted.
    resent_packets: u64,
}

/// How the user watches a test.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    pub(crate) device: &'a Device,
    pub(crate) every: Option<Duration>,
    /// Whether lines are printed, instead of only stored.
    pub(crate) text: bool,
}

/// Counts messages in intervals of the same length.
pub(crate) struct Intervals<'a> {
    watch: Watch<'a>,
    every: Duration,
    start: Instant,
    since: Instant,
    messages: u64,
    times: Option<Histogram<u64>>,
    resent: u64,
    rows: Vec<IntervalRow>,
}

impl<'a> Intervals<'a> {
    /// Starts to count, if the user asked for intervals.
    pub(crate) fn new(watch: Watch<'a>, start: Instant) -> Option<Intervals<'a>> {
        let every = watch.every?;
        let resent = resent(watch.device);
        let since = start;
        let (messages, times, rows) = (0, None, Vec::new());
        Some(Intervals { watch, every, start, since, messages, times, resent, rows })
    }

    /// Also records how long each message took.
    pub(crate) fn with_times(mut self) -> Intervals<'a> {
        self.times = Histogram::new_with_bounds(1, 60_000_000_000, 3).ok();
        self
    }

    /// Records `messages` more messages of `bytes` each as done at `now`.
    pub(crate) fn add(&mut self, now: Instant, messages: u64, bytes: u32) {
        self.messages += messages;
        if now - self.since >= self.every {
            self.end(now, bytes);
        }
    }

    /// Records one more message, which took `nanos`.
    pub(crate) fn add_time(&mut self, now: Instant, nanos: u64, bytes: u32) {
        if let Some(times) = &mut self.times {
            times.saturating_record(nanos);
        }
        self.add(now, 1, bytes);
    }

    fn end(&mut self, now: Instant, bytes: u32) {
        let seconds = (now - self.since).as_secs_f64();
        let resent = resent(self.watch.device);
        let quantile = |q: f64| {
            let times = self.times.as_ref()?;
            Some(times.value_at_quantile(q) as f64 / 1e3)
        };
        let gbps = self.messages as f64 * f64::from(bytes) * 8e-9 / seconds;
        let row = IntervalRow {
            from_s: (self.since - self.start).as_secs_f64(),
            to_s: (now - self.start).as_secs_f64(),
            messages: self.messages,
            bw_gbps: self.times.is_none().then_some(gbps),
            t_typical_us: quantile(0.5),
            p99_us: quantile(0.99),
            resent_packets: resent.saturating_sub(self.resent),
        };
        if self.watch.text {
            output::say(&row.text());
        }
        self.rows.push(row);
        (self.since, self.messages, self.resent) = (now, 0, resent);
        if let Some(times) = &mut self.times {
            times.reset();
        }
    }

    /// The recorded intervals.
    pub(crate) fn finish(self) -> Vec<IntervalRow> {
        self.rows
    }
}

impl IntervalRow {
    fn text(&self) -> String {
        let IntervalRow { from_s, to_s, messages, resent_packets, .. } = self;
        let measured = match (self.bw_gbps, self.t_typical_us, self.p99_us) {
            (Some(gbps), ..) => format!("{gbps:>10.3} Gb/s"),
            (_, Some(typical), Some(p99)) => format!("{typical:>10.2} us, 99 % {p99:.2} us"),
            _ => String::new(),
        };
        format!(
            " {from_s:>8.1}-{to_s:<8.1} s {measured}  {messages} messages, {resent_packets} packets resent"
        )
    }
}

fn resent(device: &Device) -> u64 {
    device.counters().map_or(0, |counters| counters.retransmitted_packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_with_the_message_that_passes_its_end() {
        let device = Device::open("127.9.41.1").unwrap();
        let every = Some(Duration::from_millis(100));
        let watch = Watch { device: &device, every, text: false };
        let start = Instant::now();
        let mut intervals = Intervals::new(watch, start).unwrap();
        let at = |ms| start + Duration::from_millis(ms);
        intervals.add(at(50), 10, 1000);
        intervals.add(at(125), 10, 1000);
        intervals.add(at(240), 5, 1000);
        let rows = intervals.finish();
        assert_eq!(rows.iter().map(|row| row.messages).collect::<Vec<_>>(), [20, 5]);
        let gbps = rows[0].bw_gbps.unwrap();
        assert!((gbps - 20.0 * 8000.0 / 0.125 / 1e9).abs() < 1e-9, "{gbps}");
        assert!(Intervals::new(Watch { every: None, ..watch }, start).is_none());
    }
}
