//! SIDR_REQ and SIDR_REP.

use super::*;
use crate::mad::{SidrRep, SidrReq, SidrStatus};

const DATAGRAMS: ServiceId = ServiceId::of_port(PortSpace::UDP, 7174);

fn resolve(pair: &mut Pair) -> CommId {
    let req = SidrReq { service_id: DATAGRAMS, ..SidrReq::default() };
    pair.ends[ACTIVE].resolve(pair.now, addr(PASSIVE), &req).expect("there is room")
}

fn answer(event: Option<Event>) -> SidrRep {
    match event {
        Some(Event::SidrReply { rep, .. }) => *rep,
        other => panic!("no answer but {other:?}"),
    }
}

#[test]
fn a_service_is_resolved_once_whatever_is_lost_or_doubled() {
    let mut pair = Pair::new();
    pair.ends[PASSIVE].listen(DATAGRAMS, 4).expect("nobody else listens");
    let id = resolve(&mut pair);
    let req = pair.sent(ACTIVE).remove(0);
    pair.deliver(ACTIVE, &req);
    pair.deliver(ACTIVE, &req);
    let Some(Event::SidrRequest { id: asked, .. }) = pair.event(PASSIVE) else {
        panic!("nobody asked")
    };
    let rep = SidrRep { qpn: Qpn::new(9), qkey: 0x0123_4567, ..SidrRep::default() };
    pair.ends[PASSIVE].reply(pair.now, asked, &rep).expect("it is pending");
    pair.lose(PASSIVE);
    pair.expire(ACTIVE);
    pair.settle();
    let got = answer(pair.event(ACTIVE));
    assert_eq!((got.status, got.qpn, got.qkey), (SidrStatus::VALID, rep.qpn, rep.qkey));
    assert_eq!(got.service_id, DATAGRAMS);
    assert_eq!((pair.event(ACTIVE), pair.event(PASSIVE)), (None, None));
    pair.check_nothing_left(&[(ACTIVE, id), (PASSIVE, asked)]);
}

#[test]
fn nobody_listens_or_nobody_is_there() {
    let mut pair = Pair::new();
    let id = resolve(&mut pair);
    pair.settle();
    assert_eq!(answer(pair.event(ACTIVE)).status, SidrStatus::UNSUPPORTED);
    let silent = resolve(&mut pair);
    for _ in 0..4 {
        assert_eq!(pair.names(ACTIVE), ["SIDR_REQ"]);
        pair.expire(ACTIVE);
    }
    assert_eq!(pair.event(ACTIVE), Some(Event::Unreachable { id: silent }));
    pair.check_nothing_left(&[(ACTIVE, id), (ACTIVE, silent)]);
}

#[test]
fn an_application_that_goes_away_refuses() {
    let mut pair = Pair::new();
    pair.ends[PASSIVE].listen(DATAGRAMS, 4).expect("nobody else listens");
    let id = resolve(&mut pair);
    pair.settle();
    let Some(Event::SidrRequest { id: asked, .. }) = pair.event(PASSIVE) else {
        panic!("nobody asked")
    };
    pair.ends[PASSIVE].forget(pair.now, asked);
    pair.settle();
    assert_eq!(answer(pair.event(ACTIVE)).status, SidrStatus::REJECT);
    pair.check_nothing_left(&[(ACTIVE, id)]);
}
