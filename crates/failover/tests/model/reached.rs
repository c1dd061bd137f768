//! Checks that the runs that the protocol is made for are among those explored.

use crate::check::reaches;
use crate::scope::Kind::{FetchAdd, Send};
use crate::scope::{Event, Mode, Scope};

#[test]
fn both_ends_begin_at_once() {
    for mode in [Mode::Exact, Mode::Shift] {
        reaches(Scope { faults: 2, ..Scope::new(mode, &[Send]) }, Event::BothBegan);
    }
}

#[test]
fn ties_happen() {
    let scope = Scope { faults: 2, any_rail: true, ..Scope::new(Mode::Exact, &[Send]) };
    reaches(scope, Event::TieBroken);
}

#[test]
fn rails_fail_in_the_handshake() {
    let scope = Scope { faults: 2, ..Scope::new(Mode::Shift, &[Send]) };
    reaches(scope.clone(), Event::FailedInHandshake);
    reaches(scope, Event::OldMove);
}

#[test]
fn ghosts_arrive_after_coming_back() {
    let scope = Scope { returns: 1, ..Scope::new(Mode::Shift, &[Send]) };
    reaches(scope.clone(), Event::CameBack);
    reaches(scope, Event::Ghost);
}

#[test]
fn counts_save_requests_from_being_repeated() {
    reaches(Scope::new(Mode::Shift, &[Send]), Event::Counted);
}

#[test]
fn atomics_are_answered_from_the_record_or_fail() {
    reaches(Scope::new(Mode::Exact, &[FetchAdd]), Event::Replayed);
    reaches(Scope::new(Mode::Shift, &[FetchAdd]), Event::AtomicFailed);
}

#[test]
fn ends_refuse_to_come_back() {
    let scope = Scope { away: true, faults: 0, returns: 1, ..Scope::new(Mode::Shift, &[Send]) };
    reaches(scope, Event::Refused);
}
