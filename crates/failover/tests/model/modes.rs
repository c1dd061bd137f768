//! What the two modes guarantee, and the one thing that `shift` does not.

use crate::check::{fails, holds};
use crate::properties::FRESH;
use crate::scope::Kind::{FetchAdd, FlagWrite, LongSend, Read, Send, Write, WriteImm};
use crate::scope::{Mode, Scope};

#[test]
fn exact_survives_a_fault_with_any_request() {
    holds(Scope::new(Mode::Exact, &[Write, WriteImm, FetchAdd, FlagWrite]));
    holds(Scope::new(Mode::Exact, &[Read, LongSend, FetchAdd]));
}

#[test]
fn exact_survives_faults_in_the_handshake() {
    holds(Scope { faults: 2, ..Scope::new(Mode::Exact, &[FlagWrite, LongSend]) });
    holds(Scope { faults: 3, ..Scope::new(Mode::Exact, &[FetchAdd]) });
}

#[test]
fn exact_survives_ties_and_giving_up() {
    let scope = Scope::new(Mode::Exact, &[Send, FetchAdd]);
    holds(Scope { faults: 2, any_rail: true, gives_up: true, ..scope });
}

#[test]
fn exact_survives_faults_with_both_directions_busy() {
    let scope =
        Scope { requests: [&[FetchAdd, Send], &[FlagWrite]], ..Scope::new(Mode::Exact, &[]) };
    holds(Scope { faults: 2, ..scope });
}

#[test]
fn exact_survives_flapping() {
    for higher in [0, 1] {
        let scope = Scope { higher, ..Scope::new(Mode::Exact, &[FlagWrite, FetchAdd]) };
        holds(Scope { faults: 2, returns: 1, ..scope });
    }
}

#[test]
fn shift_survives_a_fault() {
    holds(Scope::new(Mode::Shift, &[Write, WriteImm, Read, Send]));
    holds(Scope::new(Mode::Shift, &[Read, LongSend, Write]));
}

#[test]
fn shift_survives_faults_in_the_handshake() {
    holds(Scope { faults: 2, ..Scope::new(Mode::Shift, &[Write, WriteImm]) });
    holds(Scope { faults: 2, ..Scope::new(Mode::Shift, &[Read, Send]) });
    holds(Scope { faults: 2, ..Scope::new(Mode::Shift, &[LongSend]) });
    holds(Scope { faults: 3, ..Scope::new(Mode::Shift, &[Send]) });
}

#[test]
fn shift_survives_ties_and_giving_up() {
    let scope = Scope::new(Mode::Shift, &[Write, Send]);
    holds(Scope { faults: 2, any_rail: true, gives_up: true, ..scope });
}

#[test]
fn shift_survives_faults_with_both_directions_busy() {
    let scope = Scope { requests: [&[WriteImm], &[Send]], ..Scope::new(Mode::Shift, &[]) };
    holds(Scope { faults: 2, ..scope });
}

#[test]
fn shift_survives_flapping() {
    holds(Scope { faults: 2, returns: 1, ..Scope::new(Mode::Shift, &[Write, Send]) });
    holds(Scope { faults: 2, returns: 1, higher: 0, ..Scope::new(Mode::Shift, &[Send]) });
}

/// It is never executed twice, and the connection fails only after a fault.
#[test]
fn shift_fails_rather_than_repeat_an_atomic() {
    holds(Scope { faults: 2, ..Scope::new(Mode::Shift, &[Send, FetchAdd]) });
    let scope = Scope { requests: [&[FetchAdd], &[FetchAdd]], ..Scope::new(Mode::Shift, &[]) };
    holds(Scope { faults: 1, returns: 2, ..scope });
}

/// A fault while both ends drain.
#[test]
fn shift_survives_a_fault_on_the_way_back() {
    let scope = Scope { requests: [&[Send], &[Send]], ..Scope::new(Mode::Shift, &[]) };
    for higher in [0, 1] {
        holds(Scope { higher, away: true, returns: 2, ..scope.clone() });
    }
}

/// Both ends drain before a connection returns, so the return repeats nothing.
#[test]
fn shift_comes_back_without_repeating_anything() {
    let scope = Scope::new(Mode::Shift, &[]);
    let scope = Scope { requests: [&[FlagWrite, FetchAdd, Send], &[FetchAdd, FlagWrite]], ..scope };
    for higher in [0, 1] {
        holds(Scope { higher, away: true, faults: 0, returns: 2, ..scope.clone() });
    }
}

/// The limit that the paper states: NCCL LL must not use this mode.
#[test]
fn shift_overwrites_flags_in_data() {
    fails(Scope::new(Mode::Shift, &[FlagWrite]), FRESH);
    fails(Scope::new(Mode::Shift, &[Write, FlagWrite]), FRESH);
}

/// More of everything: some minutes with `--release`.
#[test]
#[ignore = "takes minutes"]
fn larger_scopes() {
    let exact = Scope::new(Mode::Exact, &[]);
    let requests: [&[_]; 2] = [&[FlagWrite, FetchAdd], &[Send]];
    holds(Scope { requests, faults: 2, returns: 1, any_rail: true, ..exact.clone() });
    let shift = Scope::new(Mode::Shift, &[]);
    let requests: [&[_]; 2] = [&[Write, Send], &[Send]];
    holds(Scope { requests, faults: 2, returns: 1, ..shift.clone() });
    holds(Scope { requests: [&[Send], &[Send]], faults: 3, ..shift });
}
