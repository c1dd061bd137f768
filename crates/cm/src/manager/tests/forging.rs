//! An attacker who knows addresses and queue pairs, but neither communication IDs nor transactions.

use super::*;
use crate::mad::{About, Dreq, Mra};

/// Every message that names an ID, with a wrong ID or transaction.
fn forgeries(ids: [CommId; 2], qpn: Qpn) -> Vec<Message> {
    let [remote_comm_id, local_comm_id] = ids;
    vec![
        Rep { local_comm_id, remote_comm_id, local_qpn: qpn, ..Rep::default() }.into(),
        Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
        Rej { local_comm_id, remote_comm_id, about: About::Rep, ..Rej::default() }.into(),
        Rej { local_comm_id, reason: RejectReason::TIMEOUT, ..Rej::default() }.into(),
        Mra { local_comm_id, remote_comm_id, ..Mra::default() }.into(),
        crate::mad::Drep { local_comm_id, remote_comm_id, ..Default::default() }.into(),
    ]
}

#[test]
fn a_connection_survives_who_knows_its_ids_but_no_transaction() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    for message in forgeries([active, passive], Qpn::new(0x22)) {
        let mad = Mad { transaction_id: 77, message }.encode();
        pair.ends[ACTIVE].handle_mad(pair.now, addr(PASSIVE), &mad);
    }
    pair.lose(ACTIVE);
    assert_eq!(pair.event(ACTIVE), None);
    assert_eq!(pair.ends[ACTIVE].owned(active).map(|c| c.state.holds_peer_qp()), Ok(true));
}

#[test]
fn a_connect_survives_who_does_not_know_its_transaction() {
    let mut pair = Pair::listening();
    let active = pair.connect();
    pair.settle();
    let before = pair.ends[ACTIVE].poll_timeout();
    for message in forgeries([active, CommId(5)], Qpn::new(0x22)) {
        let mad = Mad { transaction_id: 77, message }.encode();
        pair.ends[ACTIVE].handle_mad(pair.now, addr(PASSIVE), &mad);
    }
    assert_eq!(pair.event(ACTIVE), None);
    assert_eq!(pair.ends[ACTIVE].poll_timeout(), before);
}

#[test]
fn a_dreq_needs_both_ids_the_queue_pair_and_the_address() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    let good = Dreq {
        local_comm_id: passive,
        remote_comm_id: active,
        remote_qpn: Qpn::new(0x11),
        ..Dreq::default()
    };
    let wrong = [
        Dreq { local_comm_id: CommId(passive.0 ^ 1), ..good },
        Dreq { remote_comm_id: CommId(active.0 ^ 1), ..good },
        Dreq { remote_qpn: Qpn::new(0x12), ..good },
    ];
    for dreq in wrong {
        let mad = Mad { transaction_id: 1, message: dreq.into() }.encode();
        pair.ends[ACTIVE].handle_mad(pair.now, addr(PASSIVE), &mad);
        assert_eq!(pair.event(ACTIVE), None);
    }
    let mad = Mad { transaction_id: 1, message: good.into() }.encode();
    let elsewhere = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
    pair.ends[ACTIVE].handle_mad(pair.now, elsewhere, &mad);
    assert_eq!(pair.event(ACTIVE), None);
    pair.ends[ACTIVE].handle_mad(pair.now, addr(PASSIVE), &mad);
    assert!(matches!(pair.event(ACTIVE), Some(Event::Disconnected { .. })));
}

#[test]
fn a_forged_req_for_a_queue_pair_in_use_disconnects_nobody() {
    let mut pair = Pair::listening();
    let [active, passive] = pair.connected();
    let req = Req {
        local_comm_id: CommId(5),
        service_id: SERVICE,
        local_qpn: Qpn::new(0x11),
        ..Req::default()
    };
    let mad = Mad { transaction_id: 1, message: req.into() }.encode();
    pair.ends[PASSIVE].handle_mad(pair.now, addr(ACTIVE), &mad);
    assert_eq!(pair.ends[PASSIVE].counters().stale, 1);
    let out = pair.sent(PASSIVE).remove(0);
    assert_eq!(rej(&out).reason, RejectReason::STALE_CONNECTION);
    pair.deliver(PASSIVE, &out);
    assert_eq!((pair.event(ACTIVE), pair.event(PASSIVE)), (None, None));
    for (end, id) in [(ACTIVE, active), (PASSIVE, passive)] {
        assert_eq!(pair.ends[end].owned(id).map(|c| c.state.holds_peer_qp()), Ok(true));
    }
}

#[test]
fn a_forged_request_does_not_keep_the_true_one_out() {
    let mut pair = Pair::listening();
    let req = Req {
        local_comm_id: CommId(5),
        service_id: SERVICE,
        local_qpn: Qpn::new(0x11),
        ..Req::default()
    };
    let mad = Mad { transaction_id: 1, message: req.into() }.encode();
    pair.ends[PASSIVE].handle_mad(pair.now, addr(ACTIVE), &mad);
    let forged = pair.request();
    pair.accept(forged);
    let rep = pair.sent(PASSIVE).remove(0);
    let [active, passive] = pair.connected();
    // The forged one ends as soon as the true end learns of it.
    pair.deliver(PASSIVE, &rep);
    pair.settle();
    assert_eq!(reason(pair.event(PASSIVE)), RejectReason::INVALID_COMM_ID);
    pair.check_nothing_left(&[(ACTIVE, active), (PASSIVE, passive), (PASSIVE, forged)]);
}

#[test]
fn a_request_again_under_an_old_number_is_told_apart() {
    let mut pair = Pair::listening();
    pair.connect();
    let req = pair.sent(ACTIVE).remove(0);
    pair.deliver(ACTIVE, &req);
    pair.request();
    let other = altered(&req, |mad| mad.transaction_id ^= 1);
    pair.deliver(ACTIVE, &other);
    let out = pair.sent(PASSIVE).remove(0);
    assert_eq!(rej(&out).reason, RejectReason::STALE_CONNECTION);
    assert_eq!(pair.event(PASSIVE), None);
}

#[test]
fn ids_of_processes_on_one_address_have_their_prefix() {
    let mut end = CmManager::new(Config { comm_id_prefix: Some(0x42), ..config() }, [3; 32]);
    let ids: Vec<CommId> = (0..64)
        .map(|_| end.connect(Time::ZERO, addr(1), &Req::default()).expect("there is room"))
        .collect();
    assert!(ids.iter().all(|id| id.0 >> 24 == 0x42));
    let low: std::collections::BTreeSet<u32> = ids.iter().map(|id| id.0 & 0xff).collect();
    assert!(low.len() > 32, "the rest is random");
}
