//! REQ, REP, RTU, and their failure cases.

use super::*;
use crate::manager::{CmError, Ended};

#[test]
fn three_messages_make_a_connection() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    let req = pair.sent(ACTIVE);
    pair.deliver(ACTIVE, &req[0]);
    let passive = pair.request();
    pair.accept(passive);
    let rep = pair.sent(PASSIVE);
    pair.deliver(PASSIVE, &rep[0]);
    pair.establish(active);
    let rtu = pair.sent(ACTIVE);
    pair.deliver(ACTIVE, &rtu[0]);
    assert!(matches!(pair.event(PASSIVE), Some(Event::Established { .. })));
    assert_eq!([req.len(), rep.len(), rtu.len()], [1, 1, 1]);
    let tids = [&req, &rep, &rtu].map(|out| decode(&out[0]).transaction_id);
    assert!(tids.iter().all(|tid| *tid == tids[0]), "one transaction");
    assert_eq!(pair.ends[ACTIVE].poll_timeout(), None);
    assert_eq!(pair.ends[PASSIVE].poll_timeout(), None);
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn what_is_lost_is_sent_again() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.lose(ACTIVE);
    pair.expire(ACTIVE);
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    pair.lose(PASSIVE);
    pair.expire(PASSIVE);
    pair.settle();
    pair.establish(active);
    assert_eq!(pair.lose(ACTIVE), 1, "the RTU");
    pair.expire(PASSIVE);
    pair.settle();
    assert!(matches!(pair.event(PASSIVE), Some(Event::Established { .. })));
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn duplicates_bring_one_event_each() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    let req = pair.sent(ACTIVE).remove(0);
    pair.deliver(ACTIVE, &req);
    let passive = pair.request();
    pair.deliver(ACTIVE, &req);
    assert_eq!(pair.names(PASSIVE), ["MRA"]);
    pair.accept(passive);
    let rep = pair.sent(PASSIVE).remove(0);
    pair.deliver(ACTIVE, &req);
    assert_eq!(pair.sent(PASSIVE), std::slice::from_ref(&rep), "a REQ again, the REP again");
    pair.deliver(PASSIVE, &rep);
    pair.deliver(PASSIVE, &rep);
    assert_eq!(pair.names(ACTIVE), ["MRA"]);
    pair.establish(active);
    let rtu = pair.sent(ACTIVE).remove(0);
    pair.deliver(PASSIVE, &rep);
    assert_eq!(pair.sent(ACTIVE), std::slice::from_ref(&rtu), "a REP again, the RTU again");
    pair.deliver(ACTIVE, &rtu);
    pair.deliver(ACTIVE, &rtu);
    pair.deliver(ACTIVE, &req);
    assert!(matches!(pair.event(PASSIVE), Some(Event::Established { .. })));
    assert_eq!((pair.event(ACTIVE), pair.event(PASSIVE)), (None, None));
    assert_eq!(pair.ends[PASSIVE].len(), 1);
}

#[test]
fn a_peer_that_is_not_there_is_given_up() {
    let mut pair = Pair::new();
    let active = pair.connect();
    for _ in 0..4 {
        assert_eq!(pair.names(ACTIVE), ["REQ"]);
        pair.expire(ACTIVE);
    }
    let last = pair.sent(ACTIVE);
    assert_eq!(rej(&last[0]).reason, RejectReason::TIMEOUT);
    assert_eq!(pair.event(ACTIVE), Some(Event::Unreachable { id: active }));
    pair.check_nothing_left(&[(ACTIVE, active)]);
}

#[test]
fn who_gives_up_tells_the_passive_end() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    while pair.ends[ACTIVE].counters().retransmitted < 3 {
        pair.expire(ACTIVE);
        pair.lose(ACTIVE);
    }
    pair.expire(ACTIVE);
    pair.settle();
    assert_eq!(reason(pair.event(PASSIVE)), RejectReason::TIMEOUT);
    assert!(pair.ends[PASSIVE].accept(pair.now, passive, &Rep::default()).is_err());
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn a_reply_to_nobody_is_refused() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    // The active end dies and restarts without memory.
    pair.ends[ACTIVE] = CmManager::new(config(), [9; 32]);
    pair.accept(passive);
    pair.settle();
    assert_eq!(reason(pair.event(PASSIVE)), RejectReason::INVALID_COMM_ID);
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn an_active_end_that_dies_before_its_rtu_is_noticed() {
    let mut pair = Pair::listening();
    pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    for _ in 0..4 {
        assert_eq!(pair.names(PASSIVE), ["REP"]);
        pair.expire(PASSIVE);
    }
    assert_eq!(pair.event(PASSIVE), Some(Event::Unreachable { id: passive }));
}

#[test]
fn an_rtu_that_comes_too_late_is_refused() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    pair.settle();
    pair.establish(active);
    let rtu = pair.sent(ACTIVE).remove(0);
    while !matches!(pair.event(PASSIVE), Some(Event::Unreachable { .. })) {
        pair.expire(PASSIVE);
        pair.lose(PASSIVE);
    }
    pair.deliver(ACTIVE, &rtu);
    pair.settle();
    let how = Ended::Rejected(RejectReason::TIMEOUT);
    assert_eq!(pair.event(ACTIVE), Some(Event::Disconnected { id: active, how }));
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn nobody_listens() {
    let mut pair = Pair::new();
    let active = pair.connect();
    pair.settle();
    assert_eq!(reason(pair.event(ACTIVE)), RejectReason::INVALID_SERVICE_ID);
    pair.check_nothing_left(&[(ACTIVE, active)]);
}

#[test]
fn a_refusal_arrives_with_its_reason_even_if_it_is_lost_once() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    let mut why = NO_REASON;
    why[..3].copy_from_slice(b"why");
    let (now, consumer) = (pair.now, RejectReason::CONSUMER);
    pair.ends[PASSIVE].reject(now, passive, consumer, &why).expect("it is pending");
    pair.lose(PASSIVE);
    pair.expire(ACTIVE);
    pair.settle();
    match pair.event(ACTIVE) {
        Some(Event::Rejected { reason, private_data, .. }) => {
            assert_eq!((reason, *private_data), (consumer, why));
        }
        other => panic!("no refusal but {other:?}"),
    }
    assert_eq!(pair.event(PASSIVE), None, "the REQ that came again is the one that was refused");
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn an_active_end_may_refuse_the_reply() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    pair.settle();
    let now = pair.now;
    pair.ends[ACTIVE].reject(now, active, RejectReason::CONSUMER, &NO_REASON).expect("it may");
    pair.lose(ACTIVE);
    pair.expire(PASSIVE);
    pair.settle();
    assert_eq!(reason(pair.event(PASSIVE)), RejectReason::CONSUMER);
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}

#[test]
fn a_slow_application_is_waited_for() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    // The first retransmission triggers the MRA, and no other follows for the time it names.
    pair.expire(ACTIVE);
    pair.settle();
    let next = pair.ends[ACTIVE].poll_timeout().expect("it still waits");
    assert!(next.nanos_since(pair.now) >= CmTimeout::new(24).nanos());
    pair.accept(passive);
    pair.settle();
    pair.establish(active);
    pair.settle();
    assert!(matches!(pair.event(PASSIVE), Some(Event::Established { .. })));
}

#[test]
fn a_full_backlog_makes_peers_ask_again() {
    let mut pair = Pair::new();
    pair.ends[PASSIVE].listen(SERVICE, 1).expect("nobody else listens");
    let (first, second) = (pair.connect(), pair.connect());
    pair.settle();
    let passive = pair.request();
    assert_eq!(pair.event(PASSIVE), None);
    assert_eq!(pair.ends[PASSIVE].counters().drop_backlog, 1);
    pair.accept(passive);
    pair.settle();
    // There is a free place again.
    while pair.ends[ACTIVE].counters().retransmitted == 0 {
        pair.expire(ACTIVE);
    }
    pair.settle();
    let other = pair.request();
    let ids = [(ACTIVE, first), (ACTIVE, second), (PASSIVE, passive), (PASSIVE, other)];
    pair.check_nothing_left(&ids);
}

#[test]
fn both_may_connect_to_each_other_at_once() {
    let mut pair = Pair::listening();
    pair.ends[ACTIVE].listen(SERVICE, 4).expect("nobody else listens");
    let req = Req { service_id: SERVICE, local_qpn: Qpn::new(0x33), ..Req::default() };
    let there = pair.connect();
    let back = pair.ends[PASSIVE].connect(pair.now, addr(ACTIVE), &req).expect("there is room");
    pair.settle();
    let passive = pair.request();
    let Some(Event::Request { id: other, .. }) = pair.event(ACTIVE) else {
        panic!("two connections, not one")
    };
    pair.accept(passive);
    let rep = Rep { local_qpn: Qpn::new(0x44), ..Rep::default() };
    pair.ends[ACTIVE].accept(pair.now, other, &rep).expect("it is pending");
    pair.settle();
    pair.establish(there);
    let now = pair.now;
    pair.ends[PASSIVE].establish(now, back, &NO_DATA).expect("the reply is there");
    pair.settle();
    assert!(matches!(pair.event(ACTIVE), Some(Event::Established { id, .. }) if id == other));
    let ids = [(ACTIVE, there), (ACTIVE, other), (PASSIVE, passive), (PASSIVE, back)];
    pair.check_nothing_left(&ids);
}

#[test]
fn data_before_the_rtu_establishes_too() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let passive = pair.request();
    pair.accept(passive);
    pair.settle();
    pair.establish(active);
    pair.lose(ACTIVE);
    pair.ends[PASSIVE].notify_established(pair.now, passive).expect("it is there");
    assert!(matches!(pair.event(PASSIVE), Some(Event::Established { .. })));
    assert_eq!(pair.ends[PASSIVE].poll_timeout(), None);
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let mut pair = Pair::listening();
    let now = pair.now;
    let active = pair.connect();
    let end = &mut pair.ends[ACTIVE];
    let wrong = |call| Err(CmError::State { id: active, call });
    assert_eq!(end.accept(now, active, &Rep::default()), wrong("accept"));
    assert_eq!(end.establish(now, active, &NO_DATA), wrong("establish"));
    assert_eq!(end.disconnect(now, active), wrong("disconnect"));
    let refused = end.reject(now, active, RejectReason::CONSUMER, &NO_REASON);
    assert_eq!(refused, wrong("reject"));
    let unknown = CommId(active.0 ^ 1);
    assert_eq!(end.disconnect(now, unknown), Err(CmError::Unknown(unknown)));
    assert_eq!(pair.ends[PASSIVE].listen(SERVICE, 1), Err(CmError::InUse(SERVICE)));
}

#[test]
fn connections_end_where_their_limit_is() {
    let mut pair = Pair::with(Config { max_connections: 1, ..config() });
    pair.ends[PASSIVE].listen(SERVICE, 4).expect("nobody else listens");
    let first = pair.connect();
    let req = Req { service_id: SERVICE, ..Req::default() };
    let more = pair.ends[ACTIVE].connect(pair.now, addr(PASSIVE), &req);
    assert_eq!(more, Err(CmError::Full(1)));
    pair.settle();
    let passive = pair.request();
    let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
    let mad = Mad { transaction_id: 1, message: Req { local_comm_id: CommId(5), ..req }.into() };
    pair.ends[PASSIVE].handle_mad(pair.now, other, &mad.encode());
    let out = pair.sent(PASSIVE).remove(0);
    assert_eq!(rej(&out).reason, RejectReason::NO_RESOURCES);
    pair.check_nothing_left(&[(ACTIVE, first), (PASSIVE, passive)]);
}

#[test]
fn a_late_refusal_of_a_repeated_req_ends_nothing() {
    let mut pair = Pair::new();
    let active = pair.connect();
    let req = pair.sent(ACTIVE).remove(0);
    // There is no listener yet, and the response takes long.
    pair.deliver(ACTIVE, &req);
    let late = pair.sent(PASSIVE).remove(0);
    pair.ends[PASSIVE].listen(SERVICE, 4).expect("nobody else listens");
    pair.deliver(ACTIVE, &req);
    let passive = pair.request();
    pair.accept(passive);
    pair.settle();
    pair.deliver(PASSIVE, &late);
    pair.establish(active);
    pair.deliver(PASSIVE, &late);
    pair.settle();
    assert!(matches!(pair.event(PASSIVE), Some(Event::Established { .. })));
    assert_eq!(pair.event(ACTIVE), None);
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive)]);
}
