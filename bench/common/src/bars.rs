//! What must hold of a bench's figures, and how it is told: as text, as JSON, and as the exit
//! status.

use std::fmt;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

/// One figure, and what it must reach or stay under.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    name: String,
    /// `None` if it was not measured.
    value: Option<f64>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    holds: bool,
}

impl Bar {
    /// A figure that must be at least so large. What was not measured, or is not a number, does not
    /// hold.
    pub fn at_least(name: impl Into<String>, value: impl Into<Option<f64>>, least: f64) -> Bar {
        let value = value.into().filter(|value| !value.is_nan());
        let holds = value.is_some_and(|value| value >= least);
        Bar { name: name.into(), value, at_least: Some(least), at_most: None, holds }
    }

    /// A figure that must be at most so large.
    pub fn at_most(name: impl Into<String>, value: impl Into<Option<f64>>, most: f64) -> Bar {
        let value = value.into().filter(|value| !value.is_nan());
        let holds = value.is_some_and(|value| value <= most);
        Bar { name: name.into(), value, at_least: None, at_most: Some(most), holds }
    }

    /// The same figure, which does not hold whatever it is: something else about it is wrong.
    #[must_use]
    pub fn unless(mut self, broken: bool) -> Bar {
        self.holds &= !broken;
        self
    }

    /// Whether it is what it must be.
    pub fn holds(&self) -> bool {
        self.holds
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = self.value else {
            return write!(f, "{}: NOT MEASURED", self.name);
        };
        let (word, limit) = match (self.at_least, self.at_most) {
            (Some(least), _) => ("at least", least),
            (None, most) => ("at most", most.unwrap_or(f64::INFINITY)),
        };
        write!(f, "{}: {value:.3} ({word} {limit}) {}", self.name, verdict(self.holds))
    }
}

/// Whether all hold.
pub fn hold(bars: &[Bar]) -> bool {
    bars.iter().all(Bar::holds)
}

/// A line for each.
pub fn text(bars: &[Bar]) -> String {
    bars.iter().map(|bar| format!("{bar}\n")).collect()
}

/// The one object that `--json` prints: `more`, which is an object, with the bars.
///
/// # Panics
/// If `more` is not an object, or cannot be written as JSON.
pub fn json(bars: &[Bar], more: impl Serialize) -> String {
    let mut object = serde_json::to_value(more).expect("figures can be written as JSON");
    object["bars"] = json!(bars);
    object["holds"] = Value::Bool(hold(bars));
    object.to_string()
}

/// How verdicts are written.
pub fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "DOES NOT HOLD" }
}

/// The exit status of a bench that has found out whether it passes: 0, 1 if it does not, 2 if it
/// could not measure.
pub fn status(name: &str, outcome: Result<bool, impl fmt::Display>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_part_of_what_holds() {
        assert!(Bar::at_least("rate", 2.0, 2.0).holds());
        assert!(!Bar::at_least("rate", 1.9, 2.0).holds());
        assert!(Bar::at_most("time", 2.0, 2.0).holds());
        assert!(!Bar::at_most("time", 2.1, 2.0).holds());
        assert!(!Bar::at_most("time", 1.0, 2.0).unless(true).holds());
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        for bar in [Bar::at_least("rate", None, 1.0), Bar::at_most("time", f64::NAN, 1.0)] {
            assert!(!bar.holds());
            assert!(bar.to_string().ends_with("NOT MEASURED"), "{bar}");
            assert!(!hold(&[Bar::at_least("rate", 2.0, 1.0), bar]));
        }
    }

    #[test]
    fn the_object_has_every_bar_and_the_verdict() {
        let bars = [Bar::at_least("rate", 2.0, 1.0), Bar::at_most("time", None, 1.0)];
        let object: Value = serde_json::from_str(&json(&bars, json!({ "runs": 3 }))).unwrap();
        assert_eq!(object["runs"], 3);
        assert_eq!(object["bars"][0]["value"], 2.0);
        assert_eq!(object["bars"][0]["at_least"], 1.0);
        assert_eq!(object["bars"][0]["holds"], true);
        assert_eq!(object["bars"][1]["value"], Value::Null);
        assert_eq!(object["holds"], false);
    }
}
