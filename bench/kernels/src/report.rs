//! What the measurements come to.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use bowline_bench_common::samples::{self, Spread};
use serde::Serialize;
use serde_json::{Value, json};

/// A ratio that has to reach a bar.
pub(crate) struct Ratio {
    pub(crate) of: String,
    pub(crate) to: String,
    pub(crate) place: &'static str,
    pub(crate) at_least: f64,
}

/// All samples of a run.
pub(crate) struct Report {
    runs: u32,
    ratios: Vec<Ratio>,
    series: Vec<Series>,
}

struct Series {
    place: &'static str,
    what: String,
    samples: Vec<f64>,
}

#[derive(Serialize)]
struct JsonRate {
    what: String,
    data: &'static str,
    #[serde(flatten)]
    spread: Spread,
    /// Its median to that of a copy.
    to_copy: Option<f64>,
}

impl Report {
    pub(crate) fn new(runs: u32, ratios: Vec<Ratio>) -> Self {
        Self { runs, ratios, series: Vec::new() }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, place: &'static str, what: &str, rate: f64) {
        match self.series.iter_mut().find(|s| s.place == place && s.what == what) {
            Some(series) => series.samples.push(rate),
            None => {
                self.series.push(Series { place, what: what.to_owned(), samples: vec![rate] });
            }
        }
    }

    fn median(&self, place: &str, what: &str) -> Option<f64> {
        let series = self.series.iter().find(|s| s.place == place && s.what == what)?;
        Some(samples::median(&series.samples))
    }

    fn rates(&self) -> Vec<JsonRate> {
        let rate = |series: &Series| {
            let spread = Spread::of(&series.samples);
            JsonRate {
                what: series.what.clone(),
                data: series.place,
                spread,
                to_copy: self.median(series.place, "copy").map(|copy| spread.median / copy),
            }
        };
        self.series.iter().map(rate).collect()
    }

    /// What must hold.
    pub(crate) fn bars(&self) -> Vec<Bar> {
        let bar = |ratio: &Ratio| {
            let Ratio { of, to, place, at_least } = ratio;
            let medians = self.median(place, of).zip(self.median(place, to));
            Bar::at_least(
                format!("{of} to {to}, {place}"),
                medians.map(|(of, to)| of / to),
                *at_least,
            )
        };
        self.ratios.iter().map(bar).collect()
    }

    /// What was measured.
    pub(crate) fn json(&self) -> Value {
        json!({ "runs": self.runs, "rates_gb_per_s": self.rates() })
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<26} {:<13} {:>8} {:>8} {:>8} {:>8}   {} rounds",
            "GB/s on one core", "", "median", "lowest", "highest", "to copy", self.runs
        );
        for JsonRate { what, data, spread: Spread { median, lowest, highest }, to_copy } in
            self.rates()
        {
            let to_copy = to_copy.unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "{what:<26} {data:<13} {median:>8.2} {lowest:>8.2} {highest:>8.2} {to_copy:>8.2}"
            );
        }
        text + &bars::text(&self.bars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(encode: Option<f64>) -> Report {
        let bar = Ratio { of: "encode".into(), to: "copy".into(), place: "cold", at_least: 0.5 };
        let mut report = Report::new(3, vec![bar]);
        [2.0, 9.0, 1.0].iter().for_each(|rate| report.add("cold", "copy", *rate));
        encode.iter().for_each(|rate| report.add("cold", "encode", *rate));
        report
    }

    #[test]
    fn medians_are_compared() {
        assert!(bars::hold(&report(Some(1.0)).bars()));
        assert!(!bars::hold(&report(Some(0.9)).bars()));
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let report = report(None);
        assert!(!bars::hold(&report.bars()));
        assert!(report.table().contains("NOT MEASURED"));
    }
}
