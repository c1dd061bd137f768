//! What must hold, and whether it does.

use bowline_bench_common::bars::{self, Bar};
use bowline_sim::experiment::Figure;
use serde_json::{Value, json};

/// Bars, and the numbers behind them.
#[derive(Default)]
pub(crate) struct Bars {
    bars: Vec<Bar>,
    numbers: Vec<(String, f64)>,
}

impl Bars {
    /// A number that is only reported.
    pub(crate) fn note(&mut self, what: impl Into<String>, value: f64) {
        self.numbers.push((what.into(), value));
    }

    /// A number that must be at least so large.
    pub(crate) fn at_least(&mut self, what: impl Into<String>, value: f64, least: f64) {
        self.bars.push(Bar::at_least(what, value, least));
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
        bars::hold(&self.bars)
    }

    pub(crate) fn text(&self) -> String {
        format!("\n{}", bars::text(&self.bars))
    }

    pub(crate) fn json(&self) -> String {
        let number = |(what, value): &(String, f64)| json!({"what": what, "value": value});
        let numbers: Vec<Value> = self.numbers.iter().map(number).collect();
        bars::json(&self.bars, json!({ "numbers": numbers }))
    }
}
