//! Whether baselines went up in silence, as git tells.

use std::path::Path;
use std::process::Command;

use crate::baseline::Baseline;

/// Versions of the file that are looked at, newest first.
const VERSIONS: &str = "-50";

/// Counters whose baseline is higher than it was in an earlier version with the same reason. `None`
/// if there is no history to be had.
pub(crate) fn raised_without_reason(path: &Path, now: &Baseline) -> Option<Vec<String>> {
    let path = path.to_str()?;
    let log = ["log", VERSIONS, "--follow", "--name-only", "--format=%H", "--", path];
    let versions = git(&log).map(|log| named(&log))?;
    let version = |(commit, path): &(String, String)| git(&["show", &format!("{commit}:{path}")]);
    // A version that cannot be read was of another format, or a deletion.
    let texts = versions.iter().filter_map(version);
    let versions: Vec<_> = texts.filter_map(|text| Baseline::parse(&text).ok()).collect();
    Some(raised(now, &versions))
}

/// Commits, and what the file was called in each: it has been moved.
fn named(log: &str) -> Vec<(String, String)> {
    let mut lines = log.lines().filter(|line| !line.is_empty()).map(str::to_owned);
    std::iter::from_fn(|| lines.next().zip(lines.next())).collect()
}

fn raised(now: &Baseline, versions: &[Baseline]) -> Vec<String> {
    let raised = now.counters.iter().filter(|(name, entry)| {
        let earlier = versions.iter().filter_map(|version| version.counters.get(*name));
        let mut same_reason = earlier.filter(|earlier| earlier.reason == entry.reason);
        same_reason.any(|earlier| earlier.instructions < entry.instructions)
    });
    raised.map(|(name, _)| name.clone()).collect()
}

/// What git prints, if it succeeds.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(instructions: f64, reason: &str) -> Baseline {
        let text = format!(
            "rustc = \"1\"\n[counters]\nsend = {{ instructions = {instructions:.1}, reason = \"{reason}\" }}"
        );
        Baseline::parse(&text).unwrap()
    }

    #[test]
    fn a_file_that_was_moved_keeps_its_history() {
        let log = "b2\n\nbench/guard/baseline.toml\na1\n\nbench/guard.toml\n";
        let named = named(log);
        assert_eq!(named[0], ("b2".to_owned(), "bench/guard/baseline.toml".to_owned()));
        assert_eq!(named[1], ("a1".to_owned(), "bench/guard.toml".to_owned()));
    }

    #[test]
    fn a_count_that_goes_up_needs_a_new_reason() {
        let first = [of(100.0, "first")];
        assert_eq!(raised(&of(101.0, "first"), &first), ["send"]);
        assert!(raised(&of(101.0, "checks more"), &first).is_empty());
        assert!(raised(&of(99.0, "first"), &first).is_empty(), "going down is free");
        assert!(raised(&of(100.0, "first"), &[of(90.0, "faster"), of(100.0, "first")]).is_empty());
    }
}
