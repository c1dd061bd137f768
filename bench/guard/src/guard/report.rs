//! Counts beside their baselines, and what is to be said about them.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use serde_json::json;

use crate::baseline::Baseline;
use crate::counters::Counts;

/// How far a count may be from its baseline.
const TOLERANCE: f64 = 0.05;

pub(crate) struct Report {
    rows: Vec<Row>,
    /// Baselines that were raised in silence, where that is known.
    raised_silently: Option<Vec<String>>,
}

struct Row {
    name: String,
    baseline: Option<f64>,
    now: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Holds,
    Grew,
    Fell,
    NoBaseline,
    NoCounter,
}

impl Verdict {
    fn of(baseline: Option<f64>, now: Option<f64>) -> Verdict {
        match (baseline, now) {
            (None, _) => Verdict::NoBaseline,
            (_, None) => Verdict::NoCounter,
            (Some(baseline), Some(now)) if now > baseline * (1.0 + TOLERANCE) => Verdict::Grew,
            (Some(baseline), Some(now)) if now < baseline * (1.0 - TOLERANCE) => Verdict::Fell,
            _ => Verdict::Holds,
        }
    }

    fn passes(self) -> bool {
        matches!(self, Verdict::Holds | Verdict::Fell)
    }

    fn text(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Grew => "DOES NOT HOLD",
            Verdict::Fell => "holds; update the baseline, so that it stays so low",
            Verdict::NoBaseline => "HAS NO BASELINE",
            Verdict::NoCounter => "IS NOT COUNTED ANY MORE",
        }
    }
}

impl Row {
    fn verdict(&self) -> Verdict {
        Verdict::of(self.baseline, self.now)
    }

    /// Part of the baseline by which the count is more.
    fn change(&self) -> Option<f64> {
        Some(self.now? / self.baseline? - 1.0)
    }
}

impl Report {
    pub(crate) fn new(
        baseline: &Baseline,
        counts: &Counts,
        raised_silently: Option<Vec<String>>,
    ) -> Report {
        let stored = baseline.counters.keys().map(String::as_str);
        let mut names: Vec<&str> = stored.chain(counts.keys().copied()).collect();
        names.sort_unstable();
        names.dedup();
        let row = |name: &str| Row {
            name: name.to_owned(),
            baseline: baseline.counters.get(name).map(|entry| entry.instructions),
            now: counts.get(name).copied(),
        };
        Report { rows: names.into_iter().map(row).collect(), raised_silently }
    }

    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.verdict().passes())
            && self.raised_silently.as_ref().is_none_or(Vec::is_empty)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "instructions (callgrind, which has AVX2 and no AVX-512; bar: {:.0} % more than the baseline)\n\
             {:<16} {:>9} {:>9} {:>8}\n",
            TOLERANCE * 100.0,
            "counter",
            "baseline",
            "now",
            "change"
        );
        let number = |count: Option<f64>| count.map_or("-".to_owned(), |n| format!("{n:.1}"));
        for row in &self.rows {
            let change = row.change().map_or("-".to_owned(), |c| format!("{:+.1} %", c * 100.0));
            let (baseline, now) = (number(row.baseline), number(row.now));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<16} {baseline:>9} {now:>9} {change:>8}  {}",
                row.name,
                row.verdict().text()
            );
        }
        match &self.raised_silently {
            None => text += "reasons not checked: git has no history of the baseline here\n",
            Some(names) => {
                for name in names {
                    let _ = writeln!(text, "{name}: the baseline was raised WITHOUT A NEW REASON");
                }
            }
        }
        text
    }

    /// A bar for each counter: its instructions, and the most that the baseline allows.
    fn bars(&self) -> Vec<Bar> {
        let bar = |row: &Row| {
            let most = row.baseline.map_or(0.0, |baseline| baseline * (1.0 + TOLERANCE));
            Bar::at_most(&row.name, row.now, most)
        };
        let silent = self.raised_silently.as_ref().map_or(0, Vec::len);
        let silent = Bar::at_most("baselines raised without a new reason", silent as f64, 0.0);
        self.rows.iter().map(bar).chain([silent]).collect()
    }

    pub(crate) fn json(&self) -> String {
        let more = json!({ "raised_without_reason": self.raised_silently, "tolerance": TOLERANCE });
        bars::json(&self.bars(), more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(stored: &[(&'static str, f64)], counted: &[(&'static str, f64)]) -> Report {
        let mut baseline = Baseline::default();
        baseline.update(&stored.iter().copied().collect(), "1", "first", true).unwrap();
        Report::new(&baseline, &counted.iter().copied().collect(), Some(Vec::new()))
    }

    #[test]
    fn more_than_five_percent_up_fails() {
        let stored = [("ack.make", 400.0), ("send.1024", 1000.0)];
        assert!(report(&stored, &[("ack.make", 400.0), ("send.1024", 1050.0)]).holds());
        let grown = report(&stored, &[("ack.make", 400.0), ("send.1024", 1050.1)]);
        assert!(!grown.holds());
        assert!(grown.text().contains("DOES NOT HOLD"), "{}", grown.text());
        let object: serde_json::Value = serde_json::from_str(&grown.json()).unwrap();
        assert_eq!(object["holds"], false);
        assert_eq!(object["bars"][0]["holds"], true);
        assert_eq!(object["bars"][1]["holds"], false);
    }

    #[test]
    fn more_than_five_percent_down_is_said() {
        let fallen = report(&[("send.1024", 1000.0)], &[("send.1024", 949.0)]);
        assert!(fallen.holds());
        assert!(fallen.text().contains("update the baseline"), "{}", fallen.text());
    }

    #[test]
    fn counters_and_baselines_must_match() {
        let both = [("ack.make", 400.0), ("send.1024", 1000.0)];
        assert!(!report(&both, &both[..1]).holds(), "a baseline without a counter");
        assert!(!report(&both[..1], &both).holds(), "a counter without a baseline");
    }

    #[test]
    fn a_baseline_raised_in_silence_fails() {
        let mut report = report(&[("send.1024", 1000.0)], &[("send.1024", 1000.0)]);
        report.raised_silently = Some(vec!["send.1024".to_owned()]);
        assert!(!report.holds());
        report.raised_silently = None;
        assert!(report.holds(), "without a history there is nothing to hold against");
    }
}
