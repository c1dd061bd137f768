//! What must hold, and whether it does.

use std::fmt::Write;

use bowline_sim::experiment::Figure;
use serde_json::{Value, json};

/// Bars, and the numbers behind them.
#[derive(Default)]
pub(crate) struct Bars {
    bars: Vec<Bar>,
    numbers: Vec<(String, f64)>,
}

struct Bar {
    what: String,
    value: f64,
    least: f64,
}

impl Bars {
    /// A number that is only reported.
    pub(crate) fn note(&mut self, what: impl Into<String>, value: f64) {
        self.numbers.push((what.into(), value));
    }

    /// A number that must be at least so large.
    pub(crate) fn at_least(&mut self, what: impl Into<String>, value: f64, least: f64) {
        self.bars.push(Bar { what: what.into(), value, least });
    }

    /// The bars of a figure, and its numbers, each named by its row's first and its column.
    pub(crate) fn add_figure(&mut self, figure: &Figure) {
        for row in &figure.rows {
            let Some((first, rest)) = row.values.split_first() else { continue };
            for (column, value) in figure.columns[1..].iter().zip(rest) {
                let what = format!("{}: {} {first}, {column}", figure.title, figure.columns[0]);
                self.note(what, *value);
            }
        }
        for bar in &figure.bars {
            self.at_least(&bar.what, bar.value, bar.least);
        }
    }

    pub(crate) fn hold(&self) -> bool {
        self.bars.iter().all(Bar::holds)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::from("\n");
        for bar in &self.bars {
            let verdict = if bar.holds() { "holds" } else { "DOES NOT HOLD" };
            let (what, value, least) = (&bar.what, bar.value, bar.least);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{what}: {value:.3} (bar: at least {least:.3}) {verdict}");
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let bars: Vec<Value> = self
            .bars
            .iter()
            .map(
                |b| json!({"what": b.what, "value": b.value, "least": b.least, "holds": b.holds()}),
            )
            .collect();
        let numbers: Vec<Value> = self
            .numbers
            .iter()
            .map(|(what, value)| json!({"what": what, "value": value}))
            .collect();
        json!({"bars": bars, "numbers": numbers, "hold": self.hold()})
    }
}

impl Bar {
    fn holds(&self) -> bool {
        self.value >= self.least
    }
}
