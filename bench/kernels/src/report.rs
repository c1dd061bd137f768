//! What the measurements come to.

use std::fmt::Write;

use serde::Serialize;

/// A ratio that has to reach a bar.
pub(crate) struct Bar {
    pub(crate) of: String,
    pub(crate) to: String,
    pub(crate) place: &'static str,
    pub(crate) at_least: f64,
}

/// All samples of a run.
pub(crate) struct Report {
    runs: u32,
    bars: Vec<Bar>,
    series: Vec<Series>,
}

struct Series {
    place: &'static str,
    what: String,
    samples: Vec<f64>,
}

#[derive(Serialize)]
struct Json {
    runs: u32,
    rates_gb_per_s: Vec<JsonRate>,
    bars: Vec<JsonBar>,
    ok: bool,
}

#[derive(Serialize)]
struct JsonRate {
    what: String,
    data: &'static str,
    median: f64,
    lowest: f64,
    highest: f64,
    /// Its median to that of a copy.
    to_copy: Option<f64>,
}

#[derive(Serialize)]
struct JsonBar {
    name: String,
    data: &'static str,
    /// `null` if it was not measured.
    ratio: Option<f64>,
    bar: f64,
    ok: bool,
}

impl Report {
    pub(crate) fn new(runs: u32, bars: Vec<Bar>) -> Self {
        Self { runs, bars, series: Vec::new() }
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

    /// Whether all bars hold; not if one was not measured.
    pub(crate) fn holds(&self) -> bool {
        self.bars().iter().all(|bar| bar.ok)
    }

    fn median(&self, place: &str, what: &str) -> Option<f64> {
        let series = self.series.iter().find(|s| s.place == place && s.what == what)?;
        Some(series.sorted()[series.samples.len() / 2])
    }

    fn rates(&self) -> Vec<JsonRate> {
        let rate = |series: &Series| {
            let sorted = series.sorted();
            let median = sorted[sorted.len() / 2];
            JsonRate {
                what: series.what.clone(),
                data: series.place,
                median,
                lowest: sorted[0],
                highest: sorted[sorted.len() - 1],
                to_copy: self.median(series.place, "copy").map(|copy| median / copy),
            }
        };
        self.series.iter().map(rate).collect()
    }

    fn bars(&self) -> Vec<JsonBar> {
        let bar = |bar: &Bar| {
            let (of, to) = (self.median(bar.place, &bar.of), self.median(bar.place, &bar.to));
            let ratio = of.zip(to).map(|(of, to)| of / to);
            JsonBar {
                name: format!("{} to {}", bar.of, bar.to),
                data: bar.place,
                ratio,
                bar: bar.at_least,
                ok: ratio.is_some_and(|ratio| ratio >= bar.at_least),
            }
        };
        self.bars.iter().map(bar).collect()
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let json = Json {
            runs: self.runs,
            rates_gb_per_s: self.rates(),
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
            "{:<26} {:<13} {:>8} {:>8} {:>8} {:>8}   {} rounds",
            "GB/s on one core", "", "median", "lowest", "highest", "to copy", self.runs
        );
        for JsonRate { what, data, median, lowest, highest, to_copy } in self.rates() {
            let to_copy = to_copy.unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "{what:<26} {data:<13} {median:>8.2} {lowest:>8.2} {highest:>8.2} {to_copy:>8.2}"
            );
        }
        for JsonBar { name, data, ratio, bar, ok } in self.bars() {
            let ratio = ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.2}"));
            let verdict = if ok { "holds" } else { "DOES NOT HOLD" };
            let _ = writeln!(text, "{name}, {data}: {ratio} (bar: at least {bar}) {verdict}");
        }
        text
    }
}

impl Series {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(encode: Option<f64>) -> Report {
        let bar = Bar { of: "encode".into(), to: "copy".into(), place: "cold", at_least: 0.5 };
        let mut report = Report::new(3, vec![bar]);
        [2.0, 9.0, 1.0].iter().for_each(|rate| report.add("cold", "copy", *rate));
        encode.iter().for_each(|rate| report.add("cold", "encode", *rate));
        report
    }

    #[test]
    fn medians_are_compared() {
        assert!(report(Some(1.0)).holds());
        assert!(!report(Some(0.9)).holds());
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let report = report(None);
        assert!(!report.holds());
        assert!(report.table().contains("not measured"));
    }
}
