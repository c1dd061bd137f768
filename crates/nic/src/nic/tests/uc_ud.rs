//! The unreliable transports.

use super::*;

const OK: WcStatus = WcStatus::Success;

#[test]
fn a_uc_write_completes_when_it_is_sent_and_arrives_when_nothing_is_lost() {
    let mut p = Pair::of(QpType::Uc);
    let bytes = p.fill(0, 0, 5_000);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 5_000)]);
    let frames = p.take(0);
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    p.deliver_all(&frames);
    assert_eq!(p.take(1).len(), 0, "nobody answers");
    assert_eq!(p.ends[1].buffer.to_vec(0, 5_000), bytes);
}

#[test]
fn a_uc_message_with_a_hole_is_dropped_and_the_next_one_uses_its_receive() {
    let mut p = Pair::of(QpType::Uc);
    p.recv(1, 5, &[p.ends[1].sge(0, 5_000)]);
    p.post(0, 1, SendOp::Send, &[p.ends[0].sge(0, 3_000)]);
    let bytes = p.fill(0, 10_000, 2_000);
    p.post(0, 2, SendOp::Send, &[p.ends[0].sge(10_000, 2_000)]);
    let frames = p.take(0);
    assert_eq!(frames.len(), 5);
    for f in [&frames[0], &frames[2], &frames[3], &frames[4]] {
        p.deliver(f);
    }
    let got = p.ends[1].completions();
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].wr_id, got[0].byte_len), (5, 2_000));
    assert_eq!(p.ends[1].buffer.to_vec(0, 2_000), bytes);
    assert_eq!(p.ends[1].nic.counters().drop_message, 1);
}

#[test]
fn single_packet_uc_writes_with_immediate_survive_loss_and_reordering_independently() {
    let mut p = Pair::of(QpType::Uc);
    for i in 0..8 {
        p.recv(1, i, &[]);
        p.fill(0, i as usize * 100, 100);
        let (op, sge) =
            (SendOp::WriteImm(p.ends[1].remote(i * 100), i as u32), p.ends[0].sge(i * 100, 100));
        p.post(0, i, op, &[sge]);
    }
    let frames = p.take(0);
    for i in [3, 1, 7, 0, 5] {
        p.deliver(&frames[i]);
    }
    let imms: Vec<_> = p.ends[1].completions().iter().map(|c| c.imm.unwrap()).collect();
    assert_eq!(imms, [3, 1, 7, 0, 5]);
    assert_eq!(p.ends[1].buffer.to_vec(300, 100), p.ends[0].buffer.to_vec(300, 100));
    assert_eq!(p.ends[1].buffer.to_vec(200, 100), [0; 100], "lost");
}

#[test]
fn a_uc_peer_cannot_break_the_qp() {
    let mut p = Pair::of(QpType::Uc);
    let bad = Remote { rkey: 1, ..p.ends[1].remote(0) };
    p.post(0, 1, SendOp::Write(bad), &[p.ends[0].sge(0, 8)]);
    p.post(0, 2, SendOp::Send, &[p.ends[0].sge(0, 8)]);
    p.exchange();
    let counters = p.ends[1].nic.counters();
    assert_eq!((counters.access_violations, counters.drop_no_receive), (1, 1));
    assert_eq!(p.ends[1].state(), QpState::Rts);
    p.recv(1, 5, &[p.ends[1].sge(0, 4)]);
    p.post(0, 3, SendOp::Send, &[p.ends[0].sge(0, 8)]);
    p.exchange();
    assert_eq!(p.ends[1].statuses(), [], "too long: dropped, and the receive is kept");
    p.post(0, 4, SendOp::Send, &[p.ends[0].sge(0, 4)]);
    p.exchange();
    assert_eq!(p.ends[1].statuses(), [(5, OK)]);
}

#[test]
fn a_local_error_stops_only_the_send_queue_of_a_uc_qp() {
    let mut p = Pair::of(QpType::Uc);
    let bad = Sge { lkey: 1, ..p.ends[0].sge(0, 8) };
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[bad]);
    p.post(0, 2, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    p.exchange();
    let flushed = (2, WcStatus::WrFlushErr);
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::LocProtErr), flushed]);
    assert_eq!(p.ends[0].state(), QpState::Sqe);
    p.recv(0, 9, &[p.ends[0].sge(0, 8)]);
    p.post(1, 3, SendOp::Send, &[p.ends[1].sge(0, 8)]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(9, OK)], "receiving goes on");
    let (now, qpn) = (p.now, p.ends[0].qpn);
    let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    p.ends[0].nic.modify_qp(now, qpn, &rts).unwrap();
    p.post(0, 4, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(4, OK)]);
}

fn datagram(p: &Pair, qkey: u32) -> UdDest {
    UdDest { av: AddressVector::new(addr(1)), qpn: p.ends[1].qpn, qkey }
}

fn post_datagram(p: &mut Pair, wr_id: u64, qkey: u32, sges: &[Sge]) {
    let ud = Some(datagram(p, qkey));
    let wr = SendWr { ud, ..SendWr::new(wr_id, SendOp::SendImm(77), sges) };
    let end = &mut p.ends[0];
    end.nic.post_send(p.now, end.qpn, &wr).unwrap();
}

#[test]
fn a_datagram_arrives_behind_its_grh() {
    let mut p = Pair::of(QpType::Ud);
    let bytes = p.fill(0, 0, 100);
    p.recv(1, 5, &[p.ends[1].sge(0, 200)]);
    let sge = p.ends[0].sge(0, 100);
    post_datagram(&mut p, 1, 0x11, &[sge]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    let got = p.ends[1].completions()[0];
    assert_eq!((got.byte_len, got.imm, got.grh), (140, Some(77), true));
    assert_eq!(got.src_qpn, p.ends[0].qpn);
    let b = p.ends[1].buffer.to_vec(0, 140);
    assert_eq!(b[40..], bytes);
    assert_eq!(b[20], 0x45, "an IPv4 header in the second half of the GRH");
    assert_eq!(b[32..36], [10, 0, 0, 1]);
}

#[test]
fn datagrams_need_the_right_key_and_a_receive() {
    let mut p = Pair::of(QpType::Ud);
    let sge = p.ends[0].sge(0, 100);
    post_datagram(&mut p, 1, 0x11, &[sge]);
    post_datagram(&mut p, 2, 0x12, &[sge]);
    // A key with the top bit set selects the sender's own.
    post_datagram(&mut p, 3, 1 << 31, &[sge]);
    p.exchange();
    let counters = p.ends[1].nic.counters();
    assert_eq!((counters.drop_no_receive, counters.drop_qkey), (2, 1));
}

#[test]
fn a_datagram_longer_than_the_mtu_is_refused_at_post() {
    let mut p = Pair::of(QpType::Ud);
    let sges = [p.ends[0].sge(0, 4097)];
    let wr = SendWr { ud: Some(datagram(&p, 0x11)), ..SendWr::new(1, SendOp::Send, &sges) };
    let end = &mut p.ends[0];
    let refused = end.nic.post_send(p.now, end.qpn, &wr);
    assert_eq!(refused, Err(PostError::TooLong { given: 4097, max: 4096 }));
}

#[test]
fn inline_data_may_change_after_posting() {
    let mut p = Pair::of(QpType::Ud);
    p.recv(1, 5, &[p.ends[1].sge(0, 200)]);
    let mut bytes = *b"as it was";
    let ud = Some(datagram(&p, 0x11));
    let wr = SendWr { ud, ..SendWr::new(1, SendOp::Send, &[]) };
    let wr = SendWr { payload: Payload::Inline(&bytes), ..wr };
    let end = &mut p.ends[0];
    end.nic.post_send(p.now, end.qpn, &wr).unwrap();
    bytes.fill(0);
    p.exchange();
    assert_eq!(p.ends[1].buffer.to_vec(40, 9), *b"as it was");
}

/// Records what has landed.
struct Noted(std::sync::Arc<std::sync::Mutex<Vec<(u32, u32)>>>);

impl crate::Landing for Noted {
    fn landed(&mut self, imm: u32, bytes: u32) {
        self.0.lock().unwrap().push((imm, bytes));
    }
}

#[test]
fn packets_land_one_by_one_behind_an_indirect_key() {
    let mut p = Pair::of(QpType::Uc);
    let noted = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let end = &mut p.ends[1];
    let info = end.nic.query_qp(end.qpn).unwrap();
    let root = end.nic.register_indirect(info.init.pd, 4, 16).unwrap();
    end.nic.bind_slot(root, 3, Some((end.key, end.remote(0).addr + 512, 4_000))).unwrap();
    end.nic.set_landing(end.qpn, Box::new(Noted(noted.clone()))).unwrap();

    let bytes = p.fill(0, 0, 4_000);
    let series = ImmSeries { base: 3 << 22, first: 6, word: 0x8765_4321, fragment_bits: 4 };
    let remote = Remote { addr: 3 << 16, rkey: root.0 };
    p.post(0, 1, SendOp::WritePackets(remote, series), &[p.ends[0].sge(0, 4_000)]);
    let frames = p.take(0);
    assert_eq!(p.ends[0].statuses(), [(1, OK)], "one request, one completion");
    assert_eq!(frames.len(), 4);
    for k in [2, 3, 0] {
        p.deliver(&frames[k]);
    }
    let imm = |k: u32, fragment: u32| 3 << 22 | (6 + k) << 4 | fragment;
    assert_eq!(*noted.lock().unwrap(), [(imm(2, 1), 1024), (imm(3, 2), 928), (imm(0, 7), 1024)]);
    assert_eq!(p.ends[1].statuses(), [], "no completion, no receive");
    let landed = p.ends[1].buffer.to_vec(512, 4_000);
    assert_eq!((&landed[..1024], &landed[2048..]), (&bytes[..1024], &bytes[2048..]));
    assert_eq!(landed[1024..2048], [0; 1024], "lost");
}
