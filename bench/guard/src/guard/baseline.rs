//! The stored counts: TOML, one line a counter, so that a diff shows a count and its reason
//! together.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use crate::Result;
use crate::counters::Counts;

const HEADER: &str = "\
# Instructions per packet that a change is held against: see `bench/guard/run --help`, and CONTRIBUTING.md for how to
# change them. Written by `bench/guard/run --update --reason TEXT`.
";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    /// The compiler whose instructions they are.
    pub(crate) rustc: String,
    pub(crate) counters: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) instructions: f64,
    /// Why it is that and no less.
    pub(crate) reason: String,
}

impl Baseline {
    /// What is stored. A file that is not there is an empty baseline, if one `may_be_new`.
    pub(crate) fn load(path: &Path, may_be_new: bool) -> Result<Baseline> {
        match std::fs::read_to_string(path) {
            Ok(text) => {
                Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
            }
            Err(error) if may_be_new && error.kind() == ErrorKind::NotFound => {
                Ok(Baseline::default())
            }
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Baseline> {
        let baseline: Baseline = toml::from_str(text)?;
        for (name, entry) in &baseline.counters {
            if entry.reason.trim().is_empty() {
                return Err(format!("{name} has no reason").into());
            }
            if !(entry.instructions > 0.0 && entry.instructions.is_finite()) {
                return Err(format!("{name} is no count: {}", entry.instructions).into());
            }
        }
        Ok(baseline)
    }

    /// The part whose names are wanted.
    pub(crate) fn only(mut self, wants: impl Fn(&str) -> bool) -> Baseline {
        self.counters.retain(|name, _| wants(name));
        self
    }

    /// Takes over what has changed. If `all` were counted, others are gone.
    pub(crate) fn update(
        &mut self,
        counts: &Counts,
        rustc: &str,
        reason: &str,
        all: bool,
    ) -> Result<()> {
        let reason = reason.trim();
        if reason.is_empty() || reason.contains(char::is_control) {
            return Err("a reason is a line of text".into());
        }
        if !all && self.rustc != rustc {
            return Err(format!(
                "the baseline is of rustc {}, this is {rustc}: update all counters",
                self.rustc
            )
            .into());
        }
        rustc.clone_into(&mut self.rustc);
        if all {
            self.counters.retain(|name, _| counts.contains_key(name.as_str()));
        }
        for (name, count) in counts {
            if self.counters.get(*name).is_none_or(|entry| entry.instructions != *count) {
                let entry = Entry { instructions: *count, reason: reason.to_owned() };
                self.counters.insert((*name).to_owned(), entry);
            }
        }
        Ok(())
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{HEADER}rustc = {}\n\n[counters]\n", quoted(&self.rustc));
        for (name, Entry { instructions, reason }) in &self.counters {
            let (name, reason) = (quoted(name), quoted(reason));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{name:<18} = {{ instructions = {instructions:6.1}, reason = {reason} }}"
            );
        }
        text
    }
}

/// A string of TOML, whose escapes are JSON's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Baseline {
        let mut baseline = Baseline::default();
        let counts = Counts::from([("ack.make", 400.5), ("send.1024", 1228.0)]);
        baseline.update(&counts, "1.95.0", "the \"first\" counts", true).unwrap();
        baseline
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = stored().to_text();
        assert_eq!(Baseline::parse(&text).unwrap(), stored(), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("reason =")).count(), 2);
    }

    #[test]
    fn an_update_gives_its_reason_to_what_changed_alone() {
        let mut baseline = stored();
        let counts = Counts::from([("ack.make", 400.5), ("send.1024", 1300.0)]);
        baseline.update(&counts, "1.95.0", "checks more", true).unwrap();
        assert_eq!(baseline.counters["ack.make"].reason, "the \"first\" counts");
        let sent = Entry { instructions: 1300.0, reason: "checks more".to_owned() };
        assert_eq!(baseline.counters["send.1024"], sent);
    }

    #[test]
    fn counters_that_are_no_more_go_when_all_are_counted() {
        let counts = Counts::from([("ack.make", 400.5)]);
        let (mut part, mut all) = (stored(), stored());
        part.update(&counts, "1.95.0", "less", false).unwrap();
        all.update(&counts, "1.95.0", "less", true).unwrap();
        assert_eq!((part.counters.len(), all.counters.len()), (2, 1));
    }

    #[test]
    fn updates_without_reason_or_with_two_compilers_are_refused() {
        let counts = Counts::from([("ack.make", 500.0)]);
        assert!(stored().update(&counts, "1.95.0", " ", true).is_err());
        assert!(stored().update(&counts, "1.95.0", "two\nlines", true).is_err());
        assert!(stored().update(&counts, "1.96.0", "a reason", false).is_err());
        assert!(stored().update(&counts, "1.96.0", "a reason", true).is_ok());
        for entry in ["{ instructions = 4.0, reason = \"\" }", "{ instructions = 4.0 }"] {
            let text = format!("rustc = \"1.95.0\"\n[counters]\n\"ack.make\" = {entry}\n");
            assert!(Baseline::parse(&text).is_err(), "{text}");
        }
    }
}
