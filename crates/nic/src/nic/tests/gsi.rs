//! Queue pair 1.

use super::*;

const QKEY: u32 = 0x8001_0000;

/// A pair whose second end, with a prefix of its own, and first end both have a queue pair 1.
fn pair() -> Pair {
    let mut p = Pair::of(QpType::Ud);
    for end in &mut p.ends {
        let mut init = QpInit::new(QpType::Ud, end.pd, end.cq);
        init.max_inline = 256;
        assert_eq!(end.nic.create_gsi_qp(&init), Ok(Qpn::GSI));
        end.nic.activate(p.now, Qpn::GSI, QKEY).unwrap();
    }
    p
}

#[test]
fn management_datagrams_come_from_queue_pair_1_and_go_there() {
    let mut p = pair();
    p.ends[1].nic.config.qpn_prefix = 5;
    let sges = [p.ends[1].sge(0, 512)];
    p.ends[1].nic.post_recv(Qpn::GSI, &RecvWr::new(9, &sges)).unwrap();
    let ud = Some(UdDest { av: AddressVector::new(addr(1)), qpn: Qpn::GSI, qkey: QKEY });
    let wr = SendWr { ud, ..SendWr::new(1, SendOp::Send, &[]) };
    let wr = SendWr { payload: Payload::Inline(&[7; 256]), ..wr };
    p.ends[0].nic.post_send(p.now, Qpn::GSI, &wr).unwrap();
    p.exchange();
    let got = p.ends[1].completions();
    assert_eq!((got.len(), got[0].wr_id, got[0].src_qpn), (1, 9, Qpn::GSI));
    assert_eq!(p.ends[1].buffer.to_vec(40, 256), [7; 256]);
}

#[test]
fn there_is_one_queue_pair_1_and_it_is_for_datagrams() {
    let mut p = pair();
    let end = &mut p.ends[0];
    let init = QpInit::new(QpType::Ud, end.pd, end.cq);
    assert!(matches!(end.nic.create_gsi_qp(&init), Err(ControlError::Exhausted { limit: 1, .. })));
    end.nic.destroy_qp(Qpn::GSI).unwrap();
    let rc = QpInit { qp_type: QpType::Rc, ..init };
    assert!(matches!(end.nic.create_gsi_qp(&rc), Err(ControlError::Invalid { .. })));
    assert_eq!(end.nic.create_gsi_qp(&init), Ok(Qpn::GSI));
    // Others never get its number.
    let other = end.nic.create_qp(&init).unwrap();
    assert!(other.low16() > 1);
}
