//! What the measurements come to.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use bowline_bench_common::samples::Spread;
use serde_json::json;

/// Bowline's goodput must be at least this part of the bare socket's.
const RATIO_BAR: f64 = 0.7;
/// Bowline's latency must be at most this many times the bare socket's.
const LAT_BAR: f64 = 3.0;

/// Samples of one quantity, by variant.
pub(crate) struct Series {
    higher_is_better: bool,
    variants: Vec<(&'static str, Vec<f64>)>,
}

impl Series {
    fn new(higher_is_better: bool) -> Series {
        Series { higher_is_better, variants: Vec::new() }
    }

    /// Adds a sample of a variant.
    pub(crate) fn add(&mut self, variant: &'static str, sample: f64) {
        match self.variants.iter_mut().find(|(name, _)| *name == variant) {
            Some((_, samples)) => samples.push(sample),
            None => self.variants.push((variant, vec![sample])),
        }
    }

    /// Variants with their medians and extremes.
    fn rows(&self) -> impl Iterator<Item = (&'static str, Spread)> + '_ {
        self.variants.iter().map(|(name, samples)| (*name, Spread::of(samples)))
    }

    /// The best variant's median; not a number without samples.
    fn best(&self) -> f64 {
        let medians = self.rows().map(|(_, spread)| spread.median);
        if self.higher_is_better {
            medians.fold(f64::NAN, f64::max)
        } else {
            medians.fold(f64::NAN, f64::min)
        }
    }
}

/// All samples of a run.
pub(crate) struct Report {
    runs: u32,
    seconds: f64,
    pinned: bool,
    pub(crate) raw_gbps: Series,
    pub(crate) bowline_gbps: Series,
    pub(crate) raw_lat_us: Series,
    pub(crate) bowline_lat_us: Series,
}

impl Report {
    pub(crate) fn new(runs: u32, seconds: f64, pinned: bool) -> Report {
        Report {
            runs,
            seconds,
            pinned,
            raw_gbps: Series::new(true),
            bowline_gbps: Series::new(true),
            raw_lat_us: Series::new(false),
            bowline_lat_us: Series::new(false),
        }
    }

    fn ratio(&self) -> f64 {
        self.bowline_gbps.best() / self.raw_gbps.best()
    }

    fn lat_ratio(&self) -> f64 {
        self.bowline_lat_us.best() / self.raw_lat_us.best()
    }

    /// Whether both bars hold; not if something was not measured.
    pub(crate) fn holds(&self) -> bool {
        bars::hold(&self.bars())
    }

    fn bars(&self) -> Vec<Bar> {
        vec![
            Bar::at_least("goodput, to bare UDP", self.ratio(), RATIO_BAR),
            Bar::at_most("latency, to bare UDP", self.lat_ratio(), LAT_BAR),
        ]
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let more = json!({
            "raw_gbps": self.raw_gbps.best(),
            "bowline_gbps": self.bowline_gbps.best(),
            "raw_lat_us": self.raw_lat_us.best(),
            "bowline_lat_us": self.bowline_lat_us.best(),
            "runs": self.runs,
            "seconds": self.seconds,
            "pinned": self.pinned,
        });
        bars::json(&self.bars(), more)
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let placed = if self.pinned {
            "sender on CPU 0, receiver on CPU 1"
        } else {
            "placed by the scheduler"
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} rounds of {} s each, {placed}", self.runs, self.seconds);
        let _ = writeln!(text, "{:<44} {:>9} {:>9} {:>9}", "", "median", "lowest", "highest");
        for (kind, unit, series) in [
            ("bare UDP", "Gbit/s", &self.raw_gbps),
            ("bowline", "Gbit/s", &self.bowline_gbps),
            ("bare UDP", "us", &self.raw_lat_us),
            ("bowline", "us", &self.bowline_lat_us),
        ] {
            for (name, Spread { median, lowest, highest }) in series.rows() {
                let label = format!("{kind} {name} [{unit}]");
                let _ = writeln!(text, "{label:<44} {median:>9.2} {lowest:>9.2} {highest:>9.2}");
            }
        }
        text + &bars::text(&self.bars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_variant_counts() {
        let mut series = Series::new(true);
        for (variant, sample) in [("a", 1.0), ("b", 5.0), ("a", 9.0), ("b", 6.0), ("a", 2.0)] {
            series.add(variant, sample);
        }
        assert_eq!(series.best(), 5.5);
    }

    #[test]
    fn nothing_measured_holds_nothing() {
        assert!(!Report::new(1, 1.0, true).holds());
    }
}
