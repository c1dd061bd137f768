//! Multicast groups.

use super::*;

fn group() -> IpAddr {
    "239.1.2.3".parse().unwrap()
}

/// Another UD QP at an end, ready and with a receive.
fn member(p: &mut Pair, i: usize, wr_id: u64) -> Qpn {
    let end = &mut p.ends[i];
    let init = QpInit::new(QpType::Ud, end.pd, end.cq);
    let qpn = end.nic.create_qp(&init).unwrap();
    let qkey = end.nic.query_qp(end.qpn).unwrap().attr.qkey.unwrap();
    end.nic.activate(p.now, qpn, qkey).unwrap();
    let sges = [p.ends[i].sge(wr_id * 1000, 500)];
    p.ends[i].nic.post_recv(qpn, &RecvWr::new(wr_id, &sges)).unwrap();
    qpn
}

fn send(p: &mut Pair, from: Qpn) -> Vec<Frame> {
    let qkey = p.ends[0].nic.query_qp(from).unwrap().attr.qkey.unwrap();
    let ud = Some(UdDest { av: AddressVector::new(group()), qpn: Qpn::MULTICAST, qkey });
    let sges = [p.ends[0].sge(0, 100)];
    let wr = SendWr { ud, ..SendWr::new(1, SendOp::Send, &sges) };
    p.ends[0].nic.post_send(p.now, from, &wr).unwrap();
    p.take(0)
}

fn give(p: &mut Pair, i: usize, frames: &[Frame]) -> Vec<u64> {
    for frame in frames {
        p.ends[i].nic.handle_frame(p.now, &frame.meta, &frame.bytes);
    }
    let got = p.ends[i].completions();
    got.iter().filter(|c| c.opcode == WcOpcode::Recv).map(|c| c.wr_id).collect()
}

#[test]
fn a_datagram_to_a_group_reaches_its_members_and_nobody_else() {
    let mut p = Pair::of(QpType::Ud);
    let bytes = p.fill(0, 0, 100);
    let (a, b, _other) = (member(&mut p, 1, 1), member(&mut p, 1, 2), member(&mut p, 1, 3));
    for qpn in [a, b, a] {
        p.ends[1].nic.attach_group(qpn, group()).unwrap();
    }
    let from = p.ends[0].qpn;
    let frames = send(&mut p, from);
    assert_eq!(frames[0].meta.dst, group());
    assert_eq!(give(&mut p, 1, &frames), [1, 2], "each once");
    for offset in [1000, 2000] {
        assert_eq!(p.ends[1].buffer.to_vec(offset + 40, 100), bytes);
    }
    // One leaves, the other is destroyed: then nobody receives it.
    p.ends[1].nic.detach_group(a, group()).unwrap();
    assert!(p.ends[1].nic.detach_group(a, group()).is_err());
    p.ends[1].nic.destroy_qp(b).unwrap();
    let dropped = p.ends[1].nic.counters().drop_no_qp;
    assert_eq!(give(&mut p, 1, &frames), []);
    assert_eq!(p.ends[1].nic.counters().drop_no_qp, dropped + 1);
}

#[test]
fn a_sender_does_not_hear_itself_but_its_neighbours_do() {
    let mut p = Pair::of(QpType::Ud);
    let (from, beside) = (member(&mut p, 0, 4), member(&mut p, 0, 5));
    for qpn in [from, beside] {
        p.ends[0].nic.attach_group(qpn, group()).unwrap();
    }
    let frames = send(&mut p, from);
    assert_eq!(give(&mut p, 0, &frames), [5]);
}

#[test]
fn groups_are_for_datagrams_and_have_limits() {
    let mut p = Pair::of(QpType::Rc);
    let qpn = p.ends[0].qpn;
    let nic = &mut p.ends[0].nic;
    assert!(matches!(nic.attach_group(qpn, group()), Err(ControlError::Invalid { .. })));
    let mut p = Pair::of(QpType::Ud);
    let (a, b) = (member(&mut p, 0, 1), member(&mut p, 0, 2));
    let nic = &mut p.ends[0].nic;
    assert!(matches!(nic.attach_group(a, addr(1)), Err(ControlError::Invalid { .. })));
    (nic.config.max_groups, nic.config.max_group_members) = (1, 1);
    nic.attach_group(a, group()).unwrap();
    assert!(matches!(nic.attach_group(b, group()), Err(ControlError::Exhausted { .. })));
    let other = "239.1.2.4".parse().unwrap();
    assert!(matches!(nic.attach_group(a, other), Err(ControlError::Exhausted { .. })));
}
