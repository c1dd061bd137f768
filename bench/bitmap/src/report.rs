//! What the measurements come to.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use bowline_bench_common::samples::{Spread, median};
use serde::Serialize;
use serde_json::json;

use crate::lanes::Dealing;

/// Packets a second, one packet a chunk, on one core.
const MIN_RATE: f64 = 50e6;
/// Two lanes to one.
const MIN_SCALING: f64 = 1.7;

/// All samples of a run.
pub(crate) struct Report {
    runs: u32,
    series: Vec<(u32, Dealing, Vec<f64>)>,
}

#[derive(Serialize)]
struct JsonRate {
    packets_per_chunk: u32,
    lanes: &'static str,
    #[serde(flatten)]
    spread: Spread,
}

impl Report {
    pub(crate) fn new(runs: u32) -> Report {
        Report { runs, series: Vec::new() }
    }

    pub(crate) fn add(&mut self, chunk_shift: u32, dealing: Dealing, rate: f64) {
        let found = self.series.iter_mut().find(|s| (s.0, s.1) == (chunk_shift, dealing));
        match found {
            Some((_, _, samples)) => samples.push(rate),
            None => self.series.push((chunk_shift, dealing, vec![rate])),
        }
    }

    fn median(&self, chunk_shift: u32, dealing: Dealing) -> f64 {
        let found = self.series.iter().find(|s| (s.0, s.1) == (chunk_shift, dealing));
        found.map_or(f64::NAN, |(_, _, samples)| median(samples))
    }

    fn bars(&self) -> Vec<Bar> {
        let one = self.median(0, Dealing::OneLane);
        let bar = |name: &str, value: f64, least| Bar::at_least(name, value, least);
        let scaling = |dealing| self.median(0, dealing) / one;
        vec![
            bar("million packets/s, one lane, 1 packet a chunk", one / 1e6, MIN_RATE / 1e6),
            bar("two lanes to one, a message each", scaling(Dealing::Messages), MIN_SCALING),
            bar("two lanes to one, stripes of a message", scaling(Dealing::Stripes), MIN_SCALING),
        ]
    }

    /// Whether all bars hold.
    pub(crate) fn holds(&self) -> bool {
        bars::hold(&self.bars())
    }

    fn rates(&self) -> Vec<JsonRate> {
        let rate = |(shift, dealing, samples): &(u32, Dealing, Vec<f64>)| {
            let millions: Vec<f64> = samples.iter().map(|rate| rate / 1e6).collect();
            JsonRate {
                packets_per_chunk: 1 << shift,
                lanes: dealing.name(),
                spread: Spread::of(&millions),
            }
        };
        self.series.iter().map(rate).collect()
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let more = json!({ "runs": self.runs, "million_packets_per_s": self.rates() });
        bars::json(&self.bars(), more)
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:>7}  {:<32} {:>8} {:>8} {:>8}",
            "packets", "million packets/s", "median", "lowest", "highest"
        );
        for JsonRate { packets_per_chunk, lanes, spread } in self.rates() {
            let Spread { median, lowest, highest } = spread;
            let _ = writeln!(
                text,
                "{packets_per_chunk:>7}  {lanes:<32} {median:>8.1} {lowest:>8.1} {highest:>8.1}"
            );
        }
        text + &bars::text(&self.bars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(one: f64, two: f64) -> Report {
        let mut report = Report::new(1);
        report.add(0, Dealing::OneLane, one);
        report.add(0, Dealing::Messages, two);
        report.add(0, Dealing::Stripes, two);
        report
    }

    #[test]
    fn rate_and_scaling_both_count() {
        assert!(report(60e6, 110e6).holds());
        assert!(!report(40e6, 80e6).holds());
        assert!(!report(60e6, 90e6).holds());
    }
}
