//! The window that QPs share, when one of them leaves.

use super::*;

#[test]
fn a_qp_that_turns_to_another_peer_takes_nothing_of_the_window_along() {
    let mut p = Pair::rc();
    let now = p.now;
    let other = [0, 1].map(|i| {
        let End { nic, pd, cq, .. } = &mut p.ends[i];
        nic.create_qp(&QpInit::new(QpType::Rc, *pd, *cq)).unwrap()
    });
    for i in 0..2 {
        let to = connect_to(addr(1 - i), other[1 - i]);
        p.ends[i].nic.connect(now, other[i], &to).unwrap();
    }
    // These are never acknowledged, and more would not fit.
    let sges = [p.ends[0].sge(0, 1 << 20)];
    let write = SendOp::Write(p.ends[1].remote(0));
    for wr_id in 0..3 {
        p.post(0, wr_id, write, &sges);
    }
    assert!(p.take(0).len() < 3 << 10, "the window is full");
    let qpn = p.ends[0].qpn;
    let sqd = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    let elsewhere = QpAttr { av: Some(AddressVector::new(addr(5))), ..sqd };
    for attr in [sqd, elsewhere] {
        p.ends[0].nic.modify_qp(now, qpn, &attr).unwrap();
    }
    let small = [p.ends[0].sge(0, 64)];
    p.ends[0].nic.post_send(now, other[0], &SendWr::new(9, write, &small)).unwrap();
    let frames = p.take(0);
    let arrived: Vec<_> = frames.iter().filter(|f| f.meta.dst == addr(1)).collect();
    assert_eq!(arrived.len(), 1, "the other QP has the window to itself");
    // What it leaves in flight is charged to its new path, and given back when the QP goes.
    p.ends[0].nic.destroy_qp(qpn).unwrap();
    for frame in arrived {
        p.deliver(frame);
    }
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(9, WcStatus::Success)]);
}
