//! Objects, limits and errors of the verbs.

use super::*;

#[test]
fn objects_in_use_cannot_be_removed() {
    let mut end = End::new(0, |_| {});
    let busy = |r: Result<(), ControlError>| matches!(r, Err(ControlError::Busy { .. }));
    assert!(busy(end.nic.dealloc_pd(end.pd)));
    assert!(busy(end.nic.destroy_cq(end.cq)));
    end.nic.destroy_qp(end.qpn).unwrap();
    end.nic.destroy_cq(end.cq).unwrap();
    assert!(busy(end.nic.dealloc_pd(end.pd)), "the region is still there");
    end.nic.deregister(end.key).unwrap();
    end.nic.dealloc_pd(end.pd).unwrap();
    assert!(end.nic.dealloc_pd(end.pd).is_err(), "a handle names nothing twice");
}

#[test]
fn limits_are_kept_and_named() {
    let mut config = NicConfig::new(addr(0), [0; 32]);
    config.max_qps = 2;
    config.max_mrs = 1;
    let mut nic = Nic::new(config).unwrap();
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16).unwrap());
    let init = QpInit::new(QpType::Rc, pd, cq);
    nic.create_qp(&init).unwrap();
    nic.create_qp(&init).unwrap();
    let full = ControlError::Exhausted { what: "queue pairs", limit: 2 };
    assert_eq!(nic.create_qp(&init), Err(full));
    let b = Buffer::new(10);
    nic.register(pd, Region::owned(b.clone()), 0, Access::empty()).unwrap();
    assert!(nic.register(pd, Region::owned(b), 0, Access::empty()).is_err());
    let deep = QpInit { max_send_wr: 1 << 20, ..init };
    assert!(matches!(nic.create_qp(&deep), Err(ControlError::TooLarge { .. })));
}

#[test]
fn qpns_are_not_reused_at_once() {
    let mut end = End::new(0, |_| {});
    let init = QpInit::new(QpType::Rc, end.pd, end.cq);
    let first = end.nic.create_qp(&init).unwrap();
    end.nic.destroy_qp(first).unwrap();
    assert_ne!(end.nic.create_qp(&init).unwrap(), first);
}

#[test]
fn qpns_begin_where_they_are_told_and_go_around() {
    let config = NicConfig { first_qpn: 41, max_qps: 20, ..NicConfig::new(addr(0), [0; 32]) };
    let mut nic = Nic::new(config).unwrap();
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16).unwrap());
    let init = QpInit::new(QpType::Rc, pd, cq);
    let qpns: Vec<u32> = (0..20).map(|_| nic.create_qp(&init).unwrap().get()).collect();
    // 0 and 1 are for management.
    let expected: Vec<u32> = (0..20).map(|i| 2 + (41 + i) % 20).collect();
    assert_eq!(qpns, expected);
    assert!(nic.create_qp(&init).is_err());
}

#[test]
fn rights_that_contradict_each_other_are_refused() {
    let mut end = End::new(0, |_| {});
    let b = Buffer::new(10);
    let refused = end.nic.register(end.pd, Region::owned(b), 0, Access::REMOTE_WRITE);
    assert!(matches!(refused, Err(ControlError::Invalid { what: "access", .. })));
}

#[test]
fn keys_are_spread_over_the_whole_space() {
    let mut end = End::new(0, |_| {});
    let b = Buffer::new(10);
    let keys: Vec<u32> = (0..64)
        .map(|_| end.nic.register(end.pd, Region::owned(b.clone()), 0, ALL).unwrap().0)
        .collect();
    let ones: u32 = keys.iter().map(|k| k.count_ones()).sum();
    assert!((850..1200).contains(&ones), "about half of 2048 bits: {ones}");
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|w| w[1] - w[0] > 1), "no neighbours: {keys:x?}");
}

#[test]
fn a_notification_comes_once_per_arming() {
    let mut p = Pair::rc();
    let cq = p.ends[1].cq;
    for i in 0..3 {
        p.recv(1, i, &[]);
    }
    p.ends[1].nic.arm_cq(cq, false).unwrap();
    p.post(0, 1, SendOp::Send, &[]);
    p.post(0, 2, SendOp::Send, &[]);
    p.exchange();
    assert_eq!(p.ends[1].nic.poll_event(), Some(Event::CqNotify(cq)));
    assert_eq!(p.ends[1].nic.poll_event(), None);
    p.ends[1].nic.arm_cq(cq, true).unwrap();
    p.post(0, 3, SendOp::Send, &[]);
    p.exchange();
    assert_eq!(p.ends[1].nic.poll_event(), None, "not solicited");
    p.recv(1, 4, &[]);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let wr = SendWr { flags, ..SendWr::new(4, SendOp::Send, &[]) };
    let end = &mut p.ends[0];
    end.nic.post_send(p.now, end.qpn, &wr).unwrap();
    p.exchange();
    assert_eq!(p.ends[1].nic.poll_event(), Some(Event::CqNotify(cq)));
}

#[test]
fn an_overflowing_completion_queue_fails_its_qps_and_says_so() {
    let mut p = Pair::rc();
    let (pd, now) = (p.ends[0].pd, p.now);
    let nic = &mut p.ends[0].nic;
    let small = nic.create_cq(2).unwrap();
    nic.destroy_qp(p.ends[0].qpn).unwrap();
    p.ends[0].qpn = nic.create_qp(&QpInit::new(QpType::Rc, pd, small)).unwrap();
    p.ends[0].cq = small;
    let _ = now;
    // The peer must be connected to the new QP.
    let (qpn, reset) = (p.ends[1].qpn, QpAttr { state: Some(QpState::Reset), ..QpAttr::default() });
    p.ends[1].nic.modify_qp(now, qpn, &reset).unwrap();
    p.connect(0, 1);
    p.connect(1, 0);
    for i in 0..4 {
        p.post(0, i, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    }
    p.exchange();
    assert_eq!(p.ends[0].state(), QpState::Err);
    assert_eq!(p.ends[0].statuses().len(), 2, "what fitted can still be read");
    assert!(p.ends[0].nic.counters().cq_overflows >= 2);
    assert_eq!(p.ends[0].nic.poll_event(), Some(Event::CqOverflow(small)));
}

#[test]
fn a_shared_receive_queue_serves_its_qps_and_warns_when_low() {
    let mut end = End::new(1, |_| {});
    let srq = end.nic.create_srq(end.pd, 4, 1).unwrap();
    end.nic.destroy_qp(end.qpn).unwrap();
    let init = QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, end.pd, end.cq) };
    end.qpn = end.nic.create_qp(&init).unwrap();
    let mut p = Pair::rc();
    p.ends[1] = end;
    let (now, qpn) = (p.now, p.ends[0].qpn);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    p.ends[0].nic.modify_qp(now, qpn, &reset).unwrap();
    p.connect(0, 1);
    p.connect(1, 0);
    let refused = p.ends[1].nic.post_recv(p.ends[1].qpn, &RecvWr::new(0, &[]));
    assert_eq!(refused, Err(PostError::UsesSrq));
    for i in 0..3 {
        p.ends[1].nic.post_srq_recv(srq, &RecvWr::new(i, &[])).unwrap();
    }
    p.ends[1].nic.set_srq_limit(srq, 2).unwrap();
    p.post(0, 1, SendOp::Send, &[]);
    p.post(0, 2, SendOp::Send, &[]);
    p.exchange();
    let ids: Vec<u64> = p.ends[1].completions().iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    assert_eq!(p.ends[1].nic.poll_event(), Some(Event::SrqLimit(srq)));
    assert!(matches!(p.ends[1].nic.destroy_srq(srq), Err(ControlError::Busy { .. })));
}

#[test]
fn a_qp_in_error_flushes_what_is_posted() {
    let mut p = Pair::rc();
    p.recv(0, 1, &[]);
    p.post(0, 2, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    let (now, qpn) = (p.now, p.ends[0].qpn);
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    p.ends[0].nic.modify_qp(now, qpn, &err).unwrap();
    p.recv(0, 3, &[]);
    p.post(0, 4, SendOp::Send, &[]);
    let mut got = p.ends[0].statuses();
    got.sort_unstable_by_key(|g| g.0);
    assert_eq!(got, [1, 2, 3, 4].map(|i| (i, WcStatus::WrFlushErr)));
    p.exchange();
    assert_eq!(p.ends[0].nic.poll_timeout(), None);
}

#[test]
fn a_reset_forgets_everything_and_the_qp_can_be_used_again() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    p.exchange();
    p.post(0, 2, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    let lost = p.take(0);
    assert_eq!(lost.len(), 1);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    for i in 0..2 {
        let (now, qpn) = (p.now, p.ends[i].qpn);
        p.ends[i].nic.modify_qp(now, qpn, &reset).unwrap();
    }
    assert_eq!(p.ends[0].statuses(), [], "its completions are gone as well");
    p.connect(0, 1);
    p.connect(1, 0);
    p.post(0, 3, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(3, WcStatus::Success)]);
}

#[test]
fn posts_that_cannot_be_are_refused_with_the_reason() {
    let mut p = Pair::of(QpType::Uc);
    let remote = p.ends[1].remote(0);
    let sges = [p.ends[0].sge(0, 8); 5];
    let end = &mut p.ends[0];
    let mut post = |wr: &SendWr<'_>| end.nic.post_send(p.now, end.qpn, wr).unwrap_err();
    let read = SendWr::new(1, SendOp::Read(remote), &sges[..1]);
    assert_eq!(post(&read), PostError::UnsupportedOp(QpType::Uc));
    let many = SendWr::new(1, SendOp::Send, &sges);
    assert_eq!(post(&many), PostError::TooManySges { given: 5, max: 4 });
    let long = SendWr { payload: Payload::Inline(&[0; 257]), ..many };
    assert_eq!(post(&long), PostError::InlineTooLong { given: 257, max: 256 });
    let dest = UdDest { av: AddressVector::new(addr(1)), qpn: Qpn::new(5), qkey: 0 };
    let aimed = SendWr { ud: Some(dest), ..SendWr::new(1, SendOp::Send, &[]) };
    assert_eq!(post(&aimed), PostError::BadDestination);
}

#[test]
fn counters_read_as_prometheus_text() {
    let p = Pair::rc();
    let text = p.ends[0].nic.counters().prometheus("bl\"0");
    assert!(text.contains("bowline_drop_icrc_total{device=\"bl\\\"0\"} 0\n"), "{text}");
    assert_eq!(
        text.lines().filter(|l| l.starts_with("# HELP")).count(),
        p.ends[0].nic.counters().iter().count()
    );
}

#[test]
fn a_shared_queue_that_is_resized_keeps_its_receives_in_order() {
    let mut end = End::new(0, |_| {});
    let srq = end.nic.create_srq(end.pd, 4, 2).unwrap();
    let shared = end.nic.share_srq(srq).unwrap();
    for wr_id in 0..3 {
        shared.post(&RecvWr::new(wr_id, &[end.sge(wr_id, 1), end.sge(9, 1)])).unwrap();
    }
    shared.set_limit(3).unwrap();
    assert!(shared.resize(2).is_err(), "three wait");
    shared.resize(8).unwrap();
    assert_eq!((shared.max_wr(), shared.len()), (8, 3));
    for wr_id in 3..8 {
        shared.post(&RecvWr::new(wr_id, &[])).unwrap();
    }
    assert_eq!(shared.post(&RecvWr::new(9, &[])), Err(PostError::Full));
    shared.set_limit(8).unwrap();
    assert!(shared.resize(7).is_err(), "neither they nor the limit fit");
}
