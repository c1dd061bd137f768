//! Two hosts in virtual time, each with two NICs and an agent, connected by wires that can be cut.

mod rig;
mod scripts;

use bowline_nic::{QpState, SendOp, Time, WcStatus};
use proptest::prelude::*;

use self::rig::{DELAY_NS, Rig, SECOND};
use crate::config::Mode;
use crate::rail::Rail;
use crate::report::{Cause, Outcome};

const MODES: [Mode; 2] = [Mode::Exact, Mode::Shift];

#[test]
fn a_cut_wire_moves_both_ends_and_a_mended_one_brings_them_back() {
    for mode in MODES {
        let mut rig = Rig::new(mode, 1);
        rig.write(0, 1, 50_000);
        rig.run(SECOND / 100);
        assert_eq!(rig.completed(0), [(1, WcStatus::Success)]);
        rig.cut(Rail::Default, true);
        rig.write(0, 2, 50_000);
        rig.run(SECOND);
        assert_eq!(rig.completed(0), [(2, WcStatus::Success)], "{mode}");
        assert_eq!(rig.homes(), [Rail::Backup; 2]);
        let moved = rig.reports(0);
        assert_eq!(moved.len(), 1);
        assert_eq!(
            (moved[0].cause, moved[0].from, moved[0].to),
            (Cause::Path, Rail::Default, Rail::Backup)
        );
        assert!(moved[0].detect_ns.is_some_and(|ns| ns > 0));
        let Outcome::Moved { handover_ns, requests } = moved[0].outcome else {
            panic!("{moved:?}")
        };
        assert!(handover_ns < 3_000_000 && requests == 1, "{handover_ns} {requests}");
        rig.cut(Rail::Default, false);
        rig.write(1, 3, 50_000);
        rig.run(SECOND);
        assert_eq!(rig.completed(1), [(3, WcStatus::Success)]);
        assert_eq!(rig.homes(), [Rail::Default; 2], "{mode}");
        assert_eq!(rig.reports(0).last().map(|r| r.cause), Some(Cause::Return));
        rig.write(0, 4, 9_000);
        rig.run(SECOND / 100);
        assert_eq!(rig.completed(0), [(4, WcStatus::Success)]);
    }
}

/// A soft NIC with a verbs device as its peer.
#[test]
fn requests_wait_for_the_keys_of_a_peer_that_has_others_on_its_second_nic() {
    let mut rig = Rig::unconnected(Mode::Shift, 21);
    let here = rig.rekey(1);
    rig.introduce();
    rig.write(0, 1, 5000);
    rig.run(SECOND / 100);
    assert_eq!(rig.completed(0), [(1, WcStatus::Success)]);
    rig.cut(Rail::Default, true);
    rig.post(0, 2, SendOp::Send, 100);
    rig.recv(1, 20);
    rig.write(0, 3, 5000);
    rig.run(SECOND);
    assert_eq!(rig.homes(), [Rail::Backup; 2]);
    assert_eq!(rig.completed(0), [(2, WcStatus::Success)], "what names no key goes");
    rig.write(0, 4, 5000);
    rig.run(SECOND / 100);
    assert_eq!(rig.completed(0), []);
    rig.learn_key(0, here);
    rig.run(SECOND / 100);
    assert_eq!(rig.completed(0), [(3, WcStatus::Success), (4, WcStatus::Success)]);
    rig.add_one(0, 5);
    rig.run(SECOND / 100);
    assert_eq!(rig.completed(0), [(5, WcStatus::Success)]);
    assert_eq!(rig.counter(1), 1, "not in the memory that has the first key there");
    rig.cut(Rail::Default, false);
    rig.run(SECOND);
    assert_eq!(rig.homes(), [Rail::Default; 2]);
    rig.write(0, 6, 5000);
    rig.run(SECOND / 100);
    assert_eq!(rig.completed(0), [(6, WcStatus::Success)], "the first NIC has the first key");
}

#[test]
fn a_port_that_goes_down_is_left_at_once_and_both_ends_know_whose_it_was() {
    for mode in MODES {
        let mut rig = Rig::new(mode, 2);
        rig.lose_port(1);
        assert_eq!(rig.homes(), [Rail::Backup; 2]);
        assert_eq!(rig.reports(1)[0].cause, Cause::LocalPort);
        assert_eq!(rig.reports(0)[0].cause, Cause::PeerPort);
        // It stays on the backup rail as long as the port is down.
        rig.run(SECOND);
        assert_eq!(rig.homes(), [Rail::Backup; 2]);
        rig.mend_port(1);
        rig.run(SECOND);
        assert_eq!(rig.homes(), [Rail::Default; 2]);
    }
}

#[test]
fn without_any_rail_a_connection_fails_as_if_there_were_no_failover() {
    for mode in MODES {
        let mut rig = Rig::new(mode, 3);
        rig.cut(Rail::Default, true);
        rig.cut(Rail::Backup, true);
        rig.write(0, 1, 100);
        rig.write(0, 2, 100);
        rig.run(4 * SECOND);
        let flushed = (2, WcStatus::WrFlushErr);
        assert_eq!(rig.completed(0), [(1, WcStatus::RetryExcErr), flushed], "{mode}");
        assert_eq!(rig.reports(0).last().map(|r| r.outcome), Some(Outcome::NoAnswer));
        assert_eq!(rig.state(0), QpState::Err);
    }
}

#[test]
fn a_peer_that_is_not_known_gives_no_backup() {
    let mut rig = Rig::unconnected(Mode::Exact, 4);
    rig.guard(0);
    rig.cut(Rail::Default, true);
    rig.write(0, 1, 100);
    rig.run(SECOND);
    assert_eq!(rig.completed(0), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(rig.reports(0).last().map(|r| r.outcome), Some(Outcome::NoBackup));
}

#[test]
fn old_news_of_a_dead_path_fails_nothing() {
    // The QP has been recreated since, and no backup is known yet.
    let mut rig = Rig::unconnected(Mode::Exact, 11);
    rig.claim_path_failed(0);
    rig.write(0, 1, 100);
    rig.run(SECOND);
    assert_eq!(rig.completed(0), [(1, WcStatus::Success)]);
}

#[test]
fn an_atomic_in_flight_is_an_error_to_shift_and_exactly_once_to_exact() {
    for mode in MODES {
        let mut rig = Rig::new(mode, 5);
        // The answer is lost: the request has been executed, and this host does not know.
        rig.mute(1, Rail::Default);
        rig.add_one(0, 1);
        rig.run(SECOND);
        assert_eq!(rig.counter(1), 1, "{mode}");
        let status = rig.completed(0);
        match mode {
            Mode::Exact => assert_eq!(status, [(1, WcStatus::Success)]),
            Mode::Shift => {
                assert_eq!(status, [(1, WcStatus::RetryExcErr)]);
                assert_eq!(rig.reports(0).last().map(|r| r.outcome), Some(Outcome::AtomicInFlight));
            }
        }
    }
}

#[test]
fn a_flapping_rail_is_left_alone_for_longer_and_longer() {
    let mut rig = Rig::new(Mode::Exact, 6);
    let mut away = Vec::new();
    for _ in 0..5 {
        rig.lose_port(0);
        assert_eq!(rig.homes(), [Rail::Backup; 2]);
        rig.mend_port(0);
        let since = rig.now;
        while rig.homes() != [Rail::Default; 2] {
            rig.run(SECOND / 100);
        }
        away.push(rig.now.nanos_since(since));
    }
    assert!(away[4] > 4 * away[0], "{away:?}");
}

#[test]
fn a_rail_is_good_again_even_if_answers_take_longer_than_the_time_between_questions() {
    let mut rig = Rig::new(Mode::Exact, 9);
    rig.probe_every(DELAY_NS);
    rig.lose_port(0);
    assert_eq!(rig.homes(), [Rail::Backup; 2]);
    rig.mend_port(0);
    rig.run(SECOND);
    assert_eq!(rig.homes(), [Rail::Default; 2]);
}

#[test]
fn a_return_does_not_wait_for_a_request_that_asks_for_a_completion() {
    let mut rig = Rig::new(Mode::Shift, 10);
    rig.lose_port(0);
    rig.mend_port(0);
    // The return begins while requests are in flight that complete without a completion.
    while rig.homes() == [Rail::Backup; 2] && rig.now < Time::from_nanos(2 * SECOND) {
        (0..2).for_each(|host| rig.write_silently(host, 50_000));
        rig.run(SECOND / 1000);
    }
    rig.run(SECOND);
    assert_eq!(rig.homes(), [Rail::Default; 2]);
}

/// A verbs device at one end drains slowly. Its peer must not take that for a dead path: requests
/// would be repeated, and an atomic would fail a healthy connection.
#[test]
fn a_peer_that_drains_slowly_is_waited_for() {
    let mut rig = Rig::new(Mode::Shift, 12);
    rig.drain_for(0, 2 * SECOND);
    rig.lose_port(0);
    // No receive is posted for it for a while.
    rig.post(0, 1, SendOp::Send, 100);
    rig.mend_port(0);
    rig.run(SECOND * 3 / 2);
    assert_eq!(rig.homes(), [Rail::Backup; 2]);
    rig.recv(1, 10);
    rig.run(SECOND / 10);
    assert_eq!(rig.homes(), [Rail::Default; 2]);
    assert_eq!(rig.completed(0), [(1, WcStatus::Success)]);
    for host in 0..2 {
        let reports = rig.reports(host);
        let back = reports.last().unwrap();
        assert_eq!((back.cause, reports.len()), (Cause::Return, 2));
        assert!(matches!(back.outcome, Outcome::Moved { requests: 0, .. }), "{back:?}");
    }
}

#[test]
fn a_queue_that_takes_longer_to_drain_than_it_may_gets_more_time() {
    const STEP: u64 = SECOND / 200;
    let mut rig = Rig::new(Mode::Shift, 13);
    rig.drain_for(0, 2 * STEP);
    rig.lose_port(0);
    rig.mend_port(0);
    let (mut posted, mut received) = (0, 0);
    // Messages are received 20 steps after they are posted, so some are always outstanding.
    while rig.homes() != [Rail::Default; 2] {
        assert!(posted < 1000, "it never returns");
        rig.post(0, posted, SendOp::Send, 100);
        posted += 1;
        if posted > 20 {
            rig.recv(1, received);
            received += 1;
        }
        rig.run(STEP);
    }
    assert_eq!(rig.reports(0).last().map(|r| r.cause), Some(Cause::Return));
}

#[test]
fn what_does_not_carry_the_token_moves_nothing() {
    let mut rig = Rig::new(Mode::Exact, 7);
    rig.forge_move(0);
    rig.run(SECOND / 100);
    assert_eq!(rig.homes(), [Rail::Default; 2]);
}

#[test]
fn removing_a_connection_that_is_away_brings_it_home() {
    let mut rig = Rig::new(Mode::Exact, 8);
    rig.lose_port(0);
    rig.post(0, 1, SendOp::Send, 10);
    rig.remove(0);
    assert_eq!(rig.away(0), 0);
    assert_eq!(rig.outstanding_at_default(0), 1);
}

/// Scripts are long, so run fewer of them than of other properties by default.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(96)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn whatever_fails_everything_is_done_exactly_once(seed: u64, script in scripts::any(true)) {
        scripts::play(Mode::Exact, seed, &script)?;
    }

    #[test]
    fn starting_anew_receives_nothing_twice(seed: u64, script in scripts::any(false)) {
        scripts::play(Mode::Shift, seed, &script)?;
    }
}
