//! The checks over two engines in the simulator.

use bowline_conformance::ends::sim::{lab, sealed_lab};
use bowline_conformance::{Lab, Maker, Profile, cases, run_case};
use bowline_link::{Faults, Loss, Prob};

/// Makes the ends of a case.
type MakeLab = fn(u64, bool, Faults) -> Lab;

fn passes(make: MakeLab, profile: Profile, faults: Faults, ipv6: bool) {
    let mut failures = Vec::new();
    for (seed, case) in cases(profile, Maker::Bowline).into_iter().enumerate() {
        let mut lab = make(seed as u64, ipv6, faults);
        if let Err(failure) = run_case(&mut lab, case).result {
            failures.push(format!("{case} (seed {seed}): {failure}"));
        }
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn over_ipv4() {
    passes(lab, Profile::Clean, Faults::default(), false);
}

#[test]
fn over_ipv6() {
    passes(lab, Profile::Clean, Faults::default(), true);
}

fn faulty() -> Faults {
    Faults {
        loss: Loss::Iid(Prob::new(0.02)),
        duplicate: Prob::new(0.02),
        reorder: Prob::new(0.02),
        reorder_ns: 20_000,
        ..Faults::default()
    }
}

#[test]
fn over_a_link_that_loses_doubles_and_reorders() {
    passes(lab, Profile::Faulty, faulty(), false);
}

#[test]
fn sealed() {
    passes(sealed_lab, Profile::Clean, Faults::default(), false);
}

#[test]
fn sealed_over_a_link_that_loses_doubles_and_reorders() {
    passes(sealed_lab, Profile::Faulty, faulty(), true);
}
