//! What the measurements come to.

use std::fmt::Write;

use serde::Serialize;

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
struct Json {
    runs: u32,
    million_packets_per_s: Vec<JsonRate>,
    bars: Vec<JsonBar>,
    ok: bool,
}

#[derive(Serialize)]
struct JsonRate {
    packets_per_chunk: u32,
    lanes: &'static str,
    median: f64,
    lowest: f64,
    highest: f64,
}

#[derive(Serialize)]
struct JsonBar {
    name: &'static str,
    value: f64,
    bar: f64,
    ok: bool,
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
        found.map_or(f64::NAN, |(_, _, samples)| sorted(samples)[samples.len() / 2])
    }

    fn bars(&self) -> Vec<JsonBar> {
        let one = self.median(0, Dealing::OneLane);
        let bar = |name, value, bar| JsonBar { name, value, bar, ok: value >= bar };
        let scaling = |dealing| self.median(0, dealing) / one;
        vec![
            bar("million packets/s, one lane, 1 packet a chunk", one / 1e6, MIN_RATE / 1e6),
            bar("two lanes to one, a message each", scaling(Dealing::Messages), MIN_SCALING),
            bar("two lanes to one, stripes of a message", scaling(Dealing::Stripes), MIN_SCALING),
        ]
    }

    /// Whether all bars hold.
    pub(crate) fn holds(&self) -> bool {
        self.bars().iter().all(|bar| bar.ok)
    }

    fn rates(&self) -> Vec<JsonRate> {
        let rate = |(shift, dealing, samples): &(u32, Dealing, Vec<f64>)| {
            let sorted = sorted(samples);
            JsonRate {
                packets_per_chunk: 1 << shift,
                lanes: dealing.name(),
                median: sorted[sorted.len() / 2] / 1e6,
                lowest: sorted[0] / 1e6,
                highest: sorted[sorted.len() - 1] / 1e6,
            }
        };
        self.series.iter().map(rate).collect()
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let json = Json {
            runs: self.runs,
            million_packets_per_s: self.rates(),
            bars: self.bars(),
            ok: self.holds(),
        };
        serde_json::to_string(&json).expect("numbers and names can be written as JSON")
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
        for JsonRate { packets_per_chunk, lanes, median, lowest, highest } in self.rates() {
            let _ = writeln!(
                text,
                "{packets_per_chunk:>7}  {lanes:<32} {median:>8.1} {lowest:>8.1} {highest:>8.1}"
            );
        }
        for JsonBar { name, value, bar, ok } in self.bars() {
            let verdict = if ok { "holds" } else { "DOES NOT HOLD" };
            let _ = writeln!(text, "{name}: {value:.2} (bar: at least {bar}) {verdict}");
        }
        text
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
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
