//! What the measurements come to.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use bowline_bench_common::samples::Spread;
use serde::Serialize;
use serde_json::json;

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
struct Ratio {
    name: &'static str,
    of: &'static str,
    /// The best of these is what it is compared with.
    to: &'static [&'static str],
    at_least: f64,
    places: &'static [Where],
}

const BARS: [Ratio; 3] = [
    Ratio {
        name: "MDS encode to ISA-L",
        of: "MDS encode",
        to: &["MDS encode, ISA-L"],
        at_least: 1.05,
        places: &Where::ALL,
    },
    Ratio {
        name: "MDS decode to encode",
        of: "MDS decode, 8 lost",
        to: &["MDS encode"],
        at_least: 0.8,
        places: &Where::ALL,
    },
    Ratio {
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
struct JsonRate {
    what: &'static str,
    data: &'static str,
    #[serde(flatten)]
    spread: Spread,
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
        bars::hold(&self.bars())
    }

    fn rates(&self) -> Vec<JsonRate> {
        self.series
            .iter()
            .map(|(place, what, samples)| JsonRate {
                what,
                data: place.name(),
                spread: Spread::of(samples),
            })
            .collect()
    }

    fn bars(&self) -> Vec<Bar> {
        let rates = self.rates();
        let median = |place: Where, what: &str| {
            rates.iter().find(|r| r.data == place.name() && r.what == what).map(|r| r.spread.median)
        };
        let mut bars = Vec::new();
        for bar in &BARS {
            for place in bar.places {
                let best = bar.to.iter().filter_map(|to| median(*place, to)).reduce(f64::max);
                let ratio = median(*place, bar.of).zip(best).map(|(of, to)| of / to);
                let name = format!("{}, {}", bar.name, place.name());
                bars.push(Bar::at_least(name, ratio, bar.at_least));
            }
        }
        bars
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let more = json!({
            "kernel": self.kernel,
            "isal": self.isal,
            "runs": self.runs,
            "rates_gb_per_s": self.rates(),
        });
        bars::json(&self.bars(), more)
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
            let JsonRate { what, data, spread: Spread { median, lowest, highest } } = rate;
            let _ =
                writeln!(text, "{what:<28} {data:<18} {median:>8.2} {lowest:>8.2} {highest:>8.2}");
        }
        text + &bars::text(&self.bars())
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
