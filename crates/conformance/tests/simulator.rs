//! The body over two engines in the simulator.

use bowline_conformance::{Maker, Profile, cases, ends, run_case};
use bowline_link::{Faults, Loss, Prob};

fn passes(profile: Profile, faults: Faults, ipv6: bool) {
    let mut failures = Vec::new();
    for (seed, case) in cases(profile, Maker::Bowline).into_iter().enumerate() {
        let mut lab = ends::sim::lab(seed as u64, ipv6, faults);
        if let Err(failure) = run_case(&mut lab, case).result {
            failures.push(format!("{case} (seed {seed}): {failure}"));
        }
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn over_ipv4() {
    passes(Profile::Clean, Faults::default(), false);
}

#[test]
fn over_ipv6() {
    passes(Profile::Clean, Faults::default(), true);
}

#[test]
fn over_a_link_that_loses_doubles_and_reorders() {
    let faults = Faults {
        loss: Loss::Iid(Prob::new(0.02)),
        duplicate: Prob::new(0.02),
        reorder: Prob::new(0.02),
        reorder_ns: 20_000,
        ..Faults::default()
    };
    passes(Profile::Faulty, faults, false);
}
