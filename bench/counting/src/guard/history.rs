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
    let commits = git(&["log", VERSIONS, "--format=%H", "--", path])?;
    let version = |commit: &str| git(&["show", &format!("{commit}:./{path}")]);
    // A version that cannot be read was of another format, or a deletion.
    let versions = commits.lines().filter_map(version);
    let versions: Vec<_> = versions.filter_map(|text| Baseline::parse(&text).ok()).collect();
    Some(raised(now, &versions))
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
    fn a_count_that_goes_up_needs_a_new_reason() {
        let first = [of(100.0, "first")];
        assert_eq!(raised(&of(101.0, "first"), &first), ["send"]);
        assert!(raised(&of(101.0, "checks more"), &first).is_empty());
        assert!(raised(&of(99.0, "first"), &first).is_empty(), "going down is free");
        assert!(raised(&of(100.0, "first"), &[of(90.0, "faster"), of(100.0, "first")]).is_empty());
    }
}
