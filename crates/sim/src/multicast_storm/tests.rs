use bowline_multicast::{Merge, Minimum, Records};
use bowline_wire::Psn;

use super::run::run;
use crate::attack::Attacker;
use crate::storm::SeedReport;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks a rule to be seen before it is pushed.
const SEEDS: u64 = 300;

fn run_seed(seed: u64) -> SeedReport {
    super::run_seed(seed, Attacker::Drawn)
}

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, run_seed);
    // A storm that exercises nothing proves nothing.
    let coverage = &totals.coverage.multicast;
    let not_always = ["drop_answers", "drop_malformed", "icrc_solved", "drop_region"];
    for (name, count) in coverage.iter().filter(|(name, _)| !not_always.contains(name)) {
        assert!(count > 5, "{name}: {count}");
    }
    assert!(coverage.whole * 2 > coverage.groups, "{} groups whole", coverage.whole);
}

#[test]
fn an_attacker_without_psns_breaks_no_rule() {
    let totals = without_violation(SEEDS / 3, |seed| super::run_seed(seed, Attacker::Always));
    assert!(totals.coverage.multicast.forged > 1_000);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(run_seed);
}

/// Acknowledges what any one member has.
#[derive(Debug)]
struct Maximum;

impl Merge for Maximum {
    fn record(&self, old: Option<Psn>, acked: Psn, is_nak: bool) -> Option<Psn> {
        Minimum.record(old, acked, is_nak)
    }

    fn acknowledge(&self, records: &Records<'_>, _from: usize) -> Option<Psn> {
        let later = |a: Psn, b: Psn| if b.after(a) { b } else { a };
        records.live().filter_map(|record| record.acked).reduce(later)
    }

    fn go_back(&self, records: &Records<'_>, from: usize, nak: Psn) -> Option<Psn> {
        Minimum.go_back(records, from, nak)
    }
}

/// Forwards NAKs unchanged.
#[derive(Debug)]
struct NakAsItCame;

impl Merge for NakAsItCame {
    fn record(&self, old: Option<Psn>, acked: Psn, is_nak: bool) -> Option<Psn> {
        Minimum.record(old, acked, is_nak)
    }

    fn acknowledge(&self, records: &Records<'_>, from: usize) -> Option<Psn> {
        Minimum.acknowledge(records, from)
    }

    fn go_back(&self, _records: &Records<'_>, _from: usize, nak: Psn) -> Option<Psn> {
        Some(nak)
    }
}

/// The first seed of a thousand in which a merge rule acknowledges what a member lacks.
fn first_lie(merge: &'static dyn Merge) -> Option<u64> {
    (0..1_000).find(|seed| {
        let report = run(*seed, Attacker::Drawn, Some(merge), None).expect("no log");
        report.violations.iter().any(|violation| violation.checker == "completions")
    })
}

#[test]
fn a_wrong_merge_is_found_within_a_thousand_seeds() {
    for merge in [&Maximum as &'static dyn Merge, &NakAsItCame] {
        assert!(first_lie(merge).is_some(), "{merge:?} is not found");
    }
}
