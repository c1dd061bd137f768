//! What the measurements come to.

use std::fmt::Write;

use serde::Serialize;

/// Where the data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    /// 128 MiB, gone over once.
    Cold,
    /// One block of 64 KiB chunks, gone over again and again: 2.5 MiB with its parity, a little
    /// more than a second-level cache of 2 MiB.
    Block,
    /// One block of 16 KiB chunks, gone over again and again: all of it is in the second-level
    /// cache.
    Hot,
}

impl Where {
    pub(crate) const ALL: [Where; 3] = [Where::Cold, Where::Block, Where::Hot];

    /// Bytes in a chunk.
    pub(crate) fn chunk(self) -> usize {
        match self {
            Where::Cold | Where::Block => 64 << 10,
            Where::Hot => 16 << 10,
        }
    }

    /// Number of blocks.
    pub(crate) fn blocks(self) -> usize {
        match self {
            Where::Cold => 64,
            Where::Block | Where::Hot => 1,
        }
    }

    /// How long a sample takes at least: cold data is only cold the first time.
    pub(crate) fn min_s(self) -> f64 {
        match self {
            Where::Cold => 0.0,
            Where::Block | Where::Hot => 0.008,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Where::Cold => "cold, 64 KiB",
            Where::Block => "one block, 64 KiB",
            Where::Hot => "L2-hot, 16 KiB",
        }
    }
}

/// A ratio that has to reach a bar.
struct Bar {
    name: &'static str,
    of: &'static str,
    /// The best of these is what it is compared with.
    to: &'static [&'static str],
    at_least: f64,
    places: &'static [Where],
}

const BARS: [Bar; 3] = [
    Bar {
        name: "MDS encode to ISA-L",
        of: "MDS encode",
        to: &["MDS encode, ISA-L"],
        at_least: 1.05,
        places: &Where::ALL,
    },
    Bar {
        name: "MDS decode to encode",
        of: "MDS decode, 8 lost",
        to: &["MDS encode"],
        at_least: 0.8,
        places: &Where::ALL,
    },
    Bar {
        name: "XOR encode to memory",
        of: "XOR encode",
        to: &["memory, in turn", "memory, side by side", "memory, prefetched", "memory, streamed"],
        at_least: 0.9,
        places: &[Where::Cold],
    },
];

/// All samples of a run.
pub(crate) struct Report {
    runs: u32,
    kernel: &'static str,
    isal: bool,
    series: Vec<(Where, &'static str, Vec<f64>)>,
}

#[derive(Serialize)]
struct Json {
    kernel: &'static str,
    isal: bool,
    runs: u32,
    rates_gb_per_s: Vec<JsonRate>,
    bars: Vec<JsonBar>,
    ok: bool,
}

#[derive(Serialize)]
struct JsonRate {
    what: &'static str,
    data: &'static str,
    median: f64,
    lowest: f64,
    highest: f64,
}

#[derive(Serialize)]
struct JsonBar {
    name: &'static str,
    data: &'static str,
    /// `null` if it was not measured.
    ratio: Option<f64>,
    bar: f64,
    ok: bool,
}

impl Report {
    pub(crate) fn new(runs: u32, kernel: &'static str, isal: bool) -> Self {
        Self { runs, kernel, isal, series: Vec::new() }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, place: Where, what: &'static str, rate: f64) {
        match self.series.iter_mut().find(|(p, w, _)| (*p, *w) == (place, what)) {
            Some((_, _, samples)) => samples.push(rate),
            None => self.series.push((place, what, vec![rate])),
        }
    }

    /// Whether all bars hold; not if one was not measured.
    pub(crate) fn holds(&self) -> bool {
        self.bars().iter().all(|bar| bar.ok)
    }

    fn rates(&self) -> Vec<JsonRate> {
        self.series
            .iter()
            .map(|(place, what, samples)| {
                let mut sorted = samples.clone();
                sorted.sort_by(f64::total_cmp);
                JsonRate {
                    what,
                    data: place.name(),
                    median: sorted[sorted.len() / 2],
                    lowest: sorted[0],
                    highest: sorted[sorted.len() - 1],
                }
            })
            .collect()
    }

    fn bars(&self) -> Vec<JsonBar> {
        let rates = self.rates();
        let median = |place: Where, what: &str| {
            rates.iter().find(|r| r.data == place.name() && r.what == what).map(|r| r.median)
        };
        let mut bars = Vec::new();
        for bar in &BARS {
            for place in bar.places {
                let best = bar.to.iter().filter_map(|to| median(*place, to)).reduce(f64::max);
                let ratio = median(*place, bar.of).zip(best).map(|(of, to)| of / to);
                bars.push(JsonBar {
                    name: bar.name,
                    data: place.name(),
                    ratio,
                    bar: bar.at_least,
                    ok: ratio.is_some_and(|ratio| ratio >= bar.at_least),
                });
            }
        }
        bars
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let json = Json {
            kernel: self.kernel,
            isal: self.isal,
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
        let _ = writeln!(text, "(32, 8) on one core, {}, {} rounds", self.kernel, self.runs);
        let _ = writeln!(
            text,
            "{:<28} {:<18} {:>8} {:>8} {:>8}",
            "GB/s of data", "", "median", "lowest", "highest"
        );
        for rate in self.rates() {
            let JsonRate { what, data, median, lowest, highest } = rate;
            let _ =
                writeln!(text, "{what:<28} {data:<18} {median:>8.2} {lowest:>8.2} {highest:>8.2}");
        }
        for JsonBar { name, data, ratio, bar, ok } in self.bars() {
            let _ = match ratio {
                Some(ratio) => {
                    let verdict = if ok { "holds" } else { "DOES NOT HOLD" };
                    writeln!(text, "{name}, {data}: {ratio:.2} (bar: at least {bar}) {verdict}")
                }
                None => writeln!(text, "{name}, {data}: NOT MEASURED, ISA-L is not there"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(isal: bool, xor: f64) -> Report {
        let mut report = Report::new(1, "scalar", isal);
        for place in Where::ALL {
            if isal {
                report.add(place, "MDS encode, ISA-L", 1.0);
            }
            report.add(place, "MDS encode", 1.1);
            report.add(place, "MDS decode, 8 lost", 1.0);
            report.add(place, "XOR encode", xor);
            report.add(place, "memory, in turn", 1.0);
            report.add(place, "memory, side by side", 2.0);
        }
        report
    }

    #[test]
    fn the_better_memory_reference_counts() {
        assert!(report(true, 1.9).holds());
        assert!(!report(true, 1.7).holds());
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let report = report(false, 1.9);
        assert!(!report.holds());
        assert!(report.table().contains("NOT MEASURED"));
    }
}
