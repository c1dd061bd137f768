//! DREQ, DREP, and ends that vanish.

use super::*;
use crate::manager::Ended;

fn disconnected(event: Option<Event>) -> Ended {
    match event {
        Some(Event::Disconnected { how, .. }) => how,
        other => panic!("no end but {other:?}"),
    }
}

#[test]
fn one_end_asks_and_both_are_told() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    pair.ends[ACTIVE].disconnect(pair.now, active).expect("it is in use");
    pair.settle();
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::ByUs);
    assert_eq!(disconnected(pair.event(PASSIVE)), Ended::ByPeer);
    pair.expire(ACTIVE);
    assert_eq!(pair.event(ACTIVE), Some(Event::TimewaitExit { id: active }));
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn both_may_ask_at_once() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    pair.ends[ACTIVE].disconnect(pair.now, active).expect("it is in use");
    pair.ends[PASSIVE].disconnect(pair.now, passive).expect("it is in use");
    pair.settle();
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::ByPeer);
    assert_eq!(disconnected(pair.event(PASSIVE)), Ended::ByPeer);
    assert_eq!((pair.event(ACTIVE), pair.event(PASSIVE)), (None, None));
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn a_lost_answer_is_given_again() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    pair.ends[ACTIVE].disconnect(pair.now, active).expect("it is in use");
    let dreq = pair.sent(ACTIVE).remove(0);
    pair.deliver(ACTIVE, &dreq);
    pair.lose(PASSIVE);
    // Even when the passive end has forgotten everything.
    pair.ends[PASSIVE].forget(pair.now, passive);
    pair.expire(PASSIVE);
    assert!(pair.ends[PASSIVE].is_empty());
    pair.expire(ACTIVE);
    pair.settle();
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::ByUs);
    pair.check_nothing_left(&[(ACTIVE, active)]);
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut pair = Pair::listening();
    let [active, _] = pair.connected();
    pair.ends[ACTIVE].disconnect(pair.now, active).expect("it is in use");
    for _ in 0..4 {
        assert_eq!(pair.names(ACTIVE), ["DREQ"]);
        pair.expire(ACTIVE);
    }
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::PeerSilent);
}

#[test]
fn a_peer_that_the_transport_lost_is_reported_at_once() {
    let mut pair = Pair::listening();
    let [active, _] = pair.connected();
    pair.ends[ACTIVE].peer_lost(pair.now, active).expect("it is in use");
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::PeerSilent);
    assert_eq!(pair.names(ACTIVE), ["DREQ"]);
    assert!(pair.ends[ACTIVE].peer_lost(pair.now, active).is_err(), "it is over");
    pair.expire(ACTIVE);
    assert_eq!(pair.lose(ACTIVE), 0, "nobody is asked again");
    assert_eq!(pair.event(ACTIVE), Some(Event::TimewaitExit { id: active }));
    pair.ends[ACTIVE].forget(pair.now, active);
    assert!(pair.ends[ACTIVE].is_empty());
}

#[test]
fn a_peer_that_was_lost_by_mistake_hears_of_it() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    pair.ends[ACTIVE].peer_lost(pair.now, active).expect("it is in use");
    pair.settle();
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::PeerSilent);
    assert_eq!(disconnected(pair.event(PASSIVE)), Ended::ByPeer);
    assert_eq!((pair.event(ACTIVE), pair.event(PASSIVE)), (None, None));
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn both_ends_may_lose_each_other() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    pair.ends[ACTIVE].peer_lost(pair.now, active).expect("it is in use");
    pair.ends[PASSIVE].peer_lost(pair.now, passive).expect("it is in use");
    pair.settle();
    for end in [ACTIVE, PASSIVE] {
        assert_eq!(disconnected(pair.event(end)), Ended::PeerSilent);
        assert_eq!(pair.event(end), None);
    }
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn a_dreq_stands_for_the_rtu_that_was_lost() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    pair.settle();
    pair.establish(active);
    pair.lose(ACTIVE);
    pair.ends[ACTIVE].disconnect(pair.now, active).expect("it is in use");
    pair.settle();
    assert_eq!(disconnected(pair.event(PASSIVE)), Ended::ByPeer);
    assert_eq!(disconnected(pair.event(ACTIVE)), Ended::ByUs);
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn an_application_that_goes_away_says_goodbye_in_every_state() {
    // Connected.
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    pair.ends[ACTIVE].forget(pair.now, active);
    pair.settle();
    assert_eq!(disconnected(pair.event(PASSIVE)), Ended::ByPeer);
    assert_eq!(pair.event(ACTIVE), None);
    pair.check_nothing_left(&[(PASSIVE, passive)]);

    // The REQ is in flight.
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.ends[ACTIVE].forget(pair.now, active);
    pair.settle();
    assert_eq!(reason(pair.event(PASSIVE)), RejectReason::TIMEOUT);
    pair.check_nothing_left(&[(PASSIVE, passive)]);

    // The REP has arrived.
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    pair.settle();
    pair.ends[ACTIVE].forget(pair.now, active);
    pair.settle();
    assert_eq!(reason(pair.event(PASSIVE)), RejectReason::CONSUMER);
    pair.check_nothing_left(&[(PASSIVE, passive)]);

    // The passive end before and after its REP.
    for accepts in [false, true] {
        let mut pair = Pair::listening();
        let active = pair.connect();
        pair.settle();
        let passive = pair.request();
        if accepts {
            pair.accept(passive);
            pair.lose(PASSIVE);
        }
        pair.ends[PASSIVE].forget(pair.now, passive);
        pair.settle();
        assert_eq!(reason(pair.event(ACTIVE)), RejectReason::CONSUMER);
        pair.check_nothing_left(&[(ACTIVE, active)]);
    }
}

#[test]
fn a_request_that_nobody_took_is_refused_when_forgotten() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let id = *pair.ends[PASSIVE].connections.keys().next().expect("a request is pending");
    pair.ends[PASSIVE].forget(pair.now, id);
    assert_eq!(pair.event(PASSIVE), None, "its event goes with it");
    pair.settle();
    assert_eq!(reason(pair.event(ACTIVE)), RejectReason::CONSUMER);
    pair.check_nothing_left(&[(ACTIVE, active)]);
}
