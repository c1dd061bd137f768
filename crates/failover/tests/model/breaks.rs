//! The model can fail: every way to break the protocol has its counterexample.

use crate::check::fails;
use crate::properties::{AGREED, CAUSE, EARNED, FINISHED, FRESH, ONCE, ORDER, RECEIVES};
use crate::scope::Kind::{FetchAdd, FlagWrite, LongSend, Read, Send, Write};
use crate::scope::{Break, Kind, Mode, Scope};

fn broken(how: Break, mode: Mode, requests: &'static [Kind]) -> Scope {
    Scope { broken: Some(how), ..Scope::new(mode, requests) }
}

#[test]
fn rail_must_be_held_before_counting() {
    fails(broken(Break::NotHeld, Mode::Shift, &[Send]), ONCE);
}

#[test]
fn sends_must_wait_for_the_count() {
    fails(broken(Break::NotWithheld, Mode::Shift, &[Send]), ONCE);
}

#[test]
fn psns_must_differ_between_epochs() {
    let scope = broken(Break::SamePsns, Mode::Shift, &[Send, Send]);
    fails(Scope { faults: 2, ..scope }, ONCE);
}

/// An epoch that uses half of the PSN space reaches the PSNs of the next epoch on its rail.
#[test]
fn psns_must_follow_the_last_epochs() {
    let scope = broken(Break::PsnsByEpoch, Mode::Shift, &[Write, Write, Write, Send, Send]);
    fails(Scope { faults: 2, quarter: 2, ..scope }, ORDER);
}

#[test]
fn old_moves_must_not_be_adopted() {
    let scope = broken(Break::OldAdopted, Mode::Exact, &[Send]);
    fails(Scope { faults: 2, ..scope }, AGREED);
}

#[test]
fn ties_must_be_broken() {
    let scope = broken(Break::TieKept, Mode::Exact, &[Send]);
    fails(Scope { faults: 2, any_rail: true, ..scope }, AGREED);
}

#[test]
fn reads_must_be_asked_again() {
    fails(broken(Break::ReadsMarked, Mode::Shift, &[Read, Send]), EARNED);
}

#[test]
fn atomics_in_flight_must_be_looked_for() {
    fails(broken(Break::AtomicsUnchecked, Mode::Shift, &[FetchAdd]), ONCE);
}

#[test]
fn record_of_answers_must_move() {
    fails(broken(Break::RecordLost, Mode::Exact, &[FetchAdd]), FINISHED);
}

#[test]
fn half_a_message_moves_or_does_not() {
    fails(broken(Break::HalfLost, Mode::Exact, &[LongSend]), RECEIVES);
    fails(broken(Break::HalfKept, Mode::Shift, &[LongSend]), RECEIVES);
}

/// The answer acknowledges everything before it, as far as the peer can tell.
#[test]
fn new_transports_must_not_answer_old_reads() {
    let scope = broken(Break::GhostReadsAnswered, Mode::Shift, &[Write, Read]);
    fails(Scope { faults: 2, ..scope }, EARNED);
}

#[test]
fn moves_must_be_answered_each_time() {
    fails(broken(Break::AnsweredOnce, Mode::Exact, &[Send]), FINISHED);
}

#[test]
fn moves_must_take_both_rails() {
    fails(broken(Break::OneRailOnly, Mode::Exact, &[Send]), FINISHED);
}

#[test]
fn both_ends_must_drain_to_come_back() {
    let atomic = broken(Break::PeerNotDrained, Mode::Shift, &[FetchAdd]);
    fails(Scope { away: true, faults: 0, returns: 1, ..atomic }, CAUSE);
    let flag = broken(Break::PeerNotDrained, Mode::Shift, &[FlagWrite]);
    fails(Scope { away: true, faults: 0, returns: 1, ..flag }, FRESH);
}

#[test]
fn refusals_must_be_said() {
    let scope = broken(Break::RefusalUnsaid, Mode::Shift, &[FetchAdd]);
    fails(Scope { away: true, faults: 0, returns: 1, ..scope }, FINISHED);
}

#[test]
fn attempts_that_are_over_must_stay_so() {
    let scope = Scope::new(Mode::Shift, &[]);
    let scope =
        Scope { broken: Some(Break::LateReturnTaken), requests: [&[Send], &[FetchAdd]], ..scope };
    fails(Scope { away: true, faults: 0, returns: 2, ..scope }, CAUSE);
}
