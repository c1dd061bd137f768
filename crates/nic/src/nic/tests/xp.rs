//! XP: best effort with deadlines.

use super::*;

const OK: WcStatus = WcStatus::Success;
const MS: u64 = 1_000_000;

fn pair(options: XpOptions) -> Pair {
    let mut p = Pair::of(QpType::Xp);
    // Options come before a connection, so this is another one.
    for i in 0..2 {
        let (end, now) = (&mut p.ends[i], p.now);
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        end.nic.modify_qp(now, end.qpn, &reset).unwrap();
        end.nic.set_xp(end.qpn, &options).unwrap();
    }
    p.connect(0, 1);
    p.connect(1, 0);
    p
}

fn paper() -> Pair {
    pair(XpOptions::default())
}

fn logged(window: u8, grace_ns: u64) -> Pair {
    pair(XpOptions { window, grace_ns, loss_log: 8 })
}

impl Pair {
    fn recv_by(&mut self, wr_id: u64, offset: u64, len: u32, timeout_ns: u64) {
        let deadline = self.now.plus_nanos(timeout_ns);
        let end = &mut self.ends[1];
        let sges = [end.sge(offset, len)];
        let wr = RecvWr { deadline, ..RecvWr::new(wr_id, &sges) };
        end.nic.post_recv(end.qpn, &wr).unwrap();
    }

    fn send(&mut self, wr_id: u64, op: SendOp, offset: u64, len: u32) -> Vec<Frame> {
        self.post(0, wr_id, op, &[self.ends[0].sge(offset, len)]);
        self.take(0)
    }

    /// Completions at the receiver: request, bytes, end mark.
    fn ended(&mut self) -> Vec<(u64, u32, EndMark)> {
        let got = self.ends[1].completions();
        assert!(got.iter().all(|c| c.status == OK), "{got:?}");
        got.iter().map(|c| (c.wr_id, c.byte_len, c.end)).collect()
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.plus_nanos(ns);
        self.ends.iter_mut().for_each(|end| end.nic.handle_timeout(self.now));
    }

    /// The only range that is missing.
    fn one_hole(&mut self) -> core::ops::Range<u32> {
        let record = self.missing().unwrap();
        assert_eq!(record.missing.len(), 1, "{record:?}");
        record.missing[0].clone()
    }

    fn missing(&mut self) -> Option<LossRecord> {
        let end = &mut self.ends[1];
        end.nic.take_loss(end.qpn)
    }
}

#[test]
fn packets_of_a_message_differ_in_their_fragment_number_only() {
    let mut p = paper();
    let frames = p.send(1, SendOp::WriteImm(p.ends[1].remote(0), 7), 0, 5_000);
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(frames.len(), 5);
    for (k, frame) in frames.iter().enumerate() {
        assert_eq!(parse(frame).psn(), Psn::new(k as u32));
        let last = k == 4;
        let opcode = if last { Opcode::XP_WRITE_LAST_IMM } else { Opcode::XP_WRITE_MIDDLE_IMM };
        assert_eq!(frame.opcode(), opcode);
        assert_eq!(frame.bytes[12..48], frames[0].bytes[12..48]);
        assert!(last || frame.bytes[..9] == frames[0].bytes[..9]);
    }
}

#[test]
fn a_receive_can_be_hastened() {
    let mut p = logged(4, 0);
    for wr_id in [7, 8, 9] {
        let wr = RecvWr::new(wr_id, &[]);
        p.ends[1].nic.post_recv(p.ends[1].qpn, &wr).unwrap();
    }
    let to = SendOp::WriteImm(p.ends[1].remote(0), 7);
    let first = p.send(1, to, 0, 3_000);
    p.send(2, to, 0, 3_000);
    p.deliver(&first[0]);
    let (now, qpn) = (p.now, p.ends[1].qpn);
    let later = now.plus_nanos(MS);
    for (wr_id, at) in [(7, later), (8, now)] {
        assert_eq!(p.ends[1].nic.hasten_recv(now, qpn, wr_id, at), Ok(true));
    }
    p.pass(0);
    assert_eq!(p.ended(), [(8, 0, EndMark::Deadline)], "of which nothing has come");
    assert_eq!(p.ends[1].nic.hasten_recv(now, qpn, 8, now), Ok(false), "it has ended");
    p.deliver(&first[2]);
    assert_eq!(p.ended(), [(7, 1024 + 952, EndMark::Last)]);
    p.deliver(&first[1]);
    p.pass(2 * MS);
    assert_eq!(p.ended(), [], "the third waits without a deadline");
}

#[test]
fn every_order_of_fragments_arrives() {
    for grace in [0, MS] {
        let mut p = logged(1, grace);
        let bytes = p.fill(0, 0, 4_500);
        p.recv_by(1, 0, 5_000, 10 * MS);
        let frames = p.send(1, SendOp::SendImm(9), 0, 4_500);
        for k in [2, 0, 3, 1] {
            p.deliver(&frames[k]);
        }
        assert_eq!(p.ended(), []);
        p.deliver(&frames[4]);
        let got = p.ends[1].completions();
        assert_eq!((got[0].byte_len, got[0].end, got[0].imm), (4_500, EndMark::Whole, Some(9)));
        assert_eq!(p.ends[1].buffer.to_vec(0, 4_500), bytes);
    }
}

#[test]
fn the_last_fragment_ends_a_message_at_once_or_after_a_grace() {
    for grace in [0, MS] {
        let mut p = logged(1, grace);
        p.recv_by(1, 0, 5_000, 10 * MS);
        let frames = p.send(1, SendOp::Send, 0, 4_500);
        for k in [0, 2, 4] {
            p.deliver(&frames[k]);
        }
        if grace == 0 {
            assert_eq!(p.ended(), [(1, 1024 * 2 + 404, EndMark::Last)]);
            continue;
        }
        p.deliver(&frames[1]);
        assert_eq!(p.ended(), []);
        p.pass(grace - 1);
        assert_eq!(p.ended(), []);
        p.pass(1);
        assert_eq!(p.ended(), [(1, 1024 * 3 + 404, EndMark::Last)]);
        assert_eq!(p.one_hole(), 3072..4096);
    }
}

#[test]
fn duplicates_are_neither_counted_nor_placed() {
    let mut p = paper();
    p.recv_by(1, 0, 5_000, MS);
    let frames = p.send(1, SendOp::Send, 0, 4_500);
    for k in [0, 0, 2, 2, 2] {
        p.deliver(&frames[k]);
    }
    p.pass(MS);
    assert_eq!(p.ended(), [(1, 2048, EndMark::Deadline)]);
    assert_eq!(p.ends[1].nic.counters().duplicates, 3);
}

#[test]
fn nothing_late_touches_memory() {
    let mut p = paper();
    p.fill(0, 0, 4_500);
    p.recv_by(1, 0, 5_000, MS);
    let frames = p.send(1, SendOp::Send, 0, 4_500);
    p.deliver(&frames[0]);
    p.pass(MS);
    assert_eq!(p.ended(), [(1, 1024, EndMark::Deadline)]);
    let before = p.ends[1].buffer.to_vec(0, 5_000);
    p.deliver_all(&frames);
    assert_eq!(p.ends[1].buffer.to_vec(0, 5_000), before);
    assert_eq!(p.ended(), []);
    assert_eq!(p.ends[1].nic.counters().drop_late, 5);
}

#[test]
fn a_receive_of_which_nothing_came_is_not_the_next_message_s() {
    let mut p = paper();
    for wr_id in 0..3 {
        p.recv_by(wr_id, wr_id * 1_000, 1_000, MS);
    }
    let lost = p.send(1, SendOp::Send, 0, 100);
    p.pass(MS / 2);
    let bytes = p.fill(0, 100, 100);
    let frames = p.send(2, SendOp::Send, 100, 100);
    p.deliver_all(&frames);
    assert_eq!(p.ended(), [(0, 0, EndMark::Preempted), (1, 100, EndMark::Whole)]);
    assert_eq!(p.ends[1].buffer.to_vec(1_000, 100), bytes);
    p.deliver_all(&lost);
    assert_eq!(p.ends[1].buffer.to_vec(0, 1_000), [0; 1_000]);
    p.pass(MS / 2);
    assert_eq!(p.ended(), [(2, 0, EndMark::Deadline)]);
}

#[test]
fn a_write_says_too_which_messages_have_gone() {
    let mut p = paper();
    p.recv_by(1, 0, 1_000, 10 * MS);
    drop(p.send(1, SendOp::Send, 0, 100));
    let frames = p.send(2, SendOp::Write(p.ends[1].remote(5_000)), 0, 100);
    p.deliver_all(&frames);
    assert_eq!(p.ended(), [(1, 0, EndMark::Preempted)]);
}

#[test]
fn a_receive_that_is_posted_too_late_ends_at_once() {
    let mut p = paper();
    let frames = p.send(1, SendOp::Send, 0, 100);
    p.deliver_all(&frames);
    assert_eq!(p.ends[1].nic.counters().drop_no_receive, 1);
    let frames = p.send(2, SendOp::Send, 0, 100);
    p.deliver_all(&frames);
    p.recv_by(1, 0, 1_000, MS);
    assert_eq!(p.ended(), [(1, 0, EndMark::Preempted)]);
    // The second one may still come, and the third does.
    p.recv_by(2, 0, 1_000, MS);
    p.recv_by(3, 0, 1_000, MS);
    p.deliver_all(&frames);
    let frames = p.send(3, SendOp::Send, 0, 100);
    p.deliver_all(&frames);
    assert_eq!(p.ended(), [(2, 100, EndMark::Whole), (3, 100, EndMark::Whole)]);
}

#[test]
fn a_window_lets_messages_overlap_and_end_in_any_order() {
    let mut p = logged(4, 0);
    let mut all = Vec::new();
    for i in 0..6 {
        p.recv_by(i, i * 4_000, 4_000, 10 * MS);
        p.fill(0, i as usize * 4_000, 3_000);
        all.push(p.send(i, SendOp::WriteImm(p.ends[1].remote(i * 4_000), 0), i * 4_000, 3_000));
    }
    p.deliver(&all[0][0]);
    p.deliver_all(&all[2]);
    p.deliver_all(&all[1]);
    assert_eq!(p.ended(), [(2, 3_000, EndMark::Whole), (1, 3_000, EndMark::Whole)]);
    p.deliver(&all[3][1]);
    assert_eq!(p.ended(), []);
    p.deliver(&all[4][0]);
    assert_eq!(p.ended(), [(0, 1024, EndMark::Preempted)]);
    p.deliver_all(&all[0]);
    p.deliver(&all[2][0]);
    assert_eq!(p.ends[1].nic.counters().drop_late, 4);
    p.deliver_all(&all[5]);
    assert_eq!(p.ended(), [(5, 3_000, EndMark::Whole)]);
    p.pass(10 * MS);
    assert_eq!(p.ended(), [(3, 1024, EndMark::Deadline), (4, 1024, EndMark::Deadline)]);
    assert_eq!(p.one_hole(), 1024..3_000);
    let record = p.missing().unwrap();
    assert_eq!((record.wr_id, &record.missing[..]), (3, &[0..1024, 2048..3_000][..]));
}

#[test]
fn deadlines_are_kept_in_whatever_order_they_were_posted() {
    let mut p = paper();
    p.recv_by(1, 0, 100, 5 * MS);
    p.recv_by(2, 0, 100, MS);
    p.recv_by(3, 0, 100, 3 * MS);
    for (at, wr_id) in [(1, 2), (3, 3), (5, 1)] {
        let due = p.ends[1].nic.poll_timeout().unwrap();
        assert_eq!(due, Time::from_micros(1).plus_nanos(at * MS));
        p.pass(due.nanos_since(p.now));
        assert_eq!(p.ended(), [(wr_id, 0, EndMark::Deadline)]);
    }
    assert_eq!(p.ends[1].nic.poll_timeout(), None);
}

#[test]
fn a_sender_stops_at_its_deadline() {
    let mut p = paper();
    let rate = RateControl::Fixed { bits_per_sec: 8_000_000_000 };
    let qpn = p.ends[0].qpn;
    p.ends[0].nic.set_rate_controller(p.now, qpn, rate.factory()).unwrap();
    let sges = [p.ends[0].sge(0, 1 << 20)];
    // One megabyte takes a millisecond: the first ends halfway, the second does not start.
    for wr_id in [1, 2] {
        let deadline = p.now.plus_nanos(MS / 2);
        let wr = SendWr { deadline, ..SendWr::new(wr_id, SendOp::Send, &sges) };
        p.ends[0].nic.post_send(p.now, qpn, &wr).unwrap();
    }
    let mut sent = 0;
    while p.ends[0].nic.poll_timeout().is_some() {
        sent += p.take(0).len();
        let due = p.ends[0].nic.poll_timeout().unwrap_or(p.now);
        p.pass(due.nanos_since(p.now));
    }
    let got = p.ends[0].completions();
    let ends: Vec<_> = got.iter().map(|c| (c.wr_id, c.end)).collect();
    assert_eq!(ends, [(1, EndMark::Deadline), (2, EndMark::Deadline)]);
    assert_eq!(got[0].byte_len as usize, sent * 1024);
    assert!((400_000..600_000).contains(&got[0].byte_len), "{}", got[0].byte_len);
    assert_eq!(got[1].byte_len, 0);
    // The peer's receives stay in step.
    (0..3).for_each(|wr_id| p.recv_by(wr_id, 0, 100, 10 * MS));
    let frames = p.send(3, SendOp::Send, 0, 100);
    p.deliver_all(&frames);
    let ended = p.ended();
    assert_eq!(ended[2], (2, 100, EndMark::Whole));
}

#[test]
fn a_read_ends_whole_or_by_its_deadline_and_the_responder_stops() {
    let mut p = paper();
    let bytes = p.fill(1, 0, 5_000);
    let read = |p: &mut Pair, wr_id, timeout_ns| {
        let sges = [p.ends[0].sge(10_000, 5_000)];
        let deadline = p.now.plus_nanos(timeout_ns);
        let op = SendOp::Read(p.ends[1].remote(0));
        let wr = SendWr { deadline, ..SendWr::new(wr_id, op, &sges) };
        let qpn = p.ends[0].qpn;
        p.ends[0].nic.post_send(p.now, qpn, &wr).unwrap();
    };
    read(&mut p, 1, MS);
    p.exchange();
    let got = p.ends[0].completions();
    assert_eq!((got[0].byte_len, got[0].end), (5_000, EndMark::Whole));
    assert_eq!(p.ends[0].buffer.to_vec(10_000, 5_000), bytes);

    // Fragments are lost, and a late one is dropped.
    read(&mut p, 2, MS);
    let request = p.take(0);
    p.deliver_all(&request);
    let answer = p.take(1);
    p.deliver(&answer[1]);
    p.pass(MS);
    let got = p.ends[0].completions();
    assert_eq!((got[0].wr_id, got[0].byte_len, got[0].end), (2, 1024, EndMark::Deadline));
    p.deliver_all(&answer);
    assert_eq!(p.ends[0].completions(), []);

    // A repeated request is not answered again.
    p.deliver_all(&request);
    assert_eq!(p.take(1).len(), 0);

    // The deadline has passed when the responder gets its turn.
    read(&mut p, 3, MS);
    let request = p.take(0);
    p.deliver_all(&request);
    p.now = p.now.plus_nanos(MS);
    assert_eq!(p.take(1).len(), 0);
}

#[test]
fn strided_fragments_scatter_over_their_blocks() {
    let mut p = logged(1, 0);
    let bytes = p.fill(0, 0, 9_000);
    p.recv_by(1, 0, 9_000, MS);
    let sges = [p.ends[0].sge(0, 4_000), p.ends[0].sge(4_000, 5_000)];
    let wr = SendWr { stride: 4, ..SendWr::new(1, SendOp::Send, &sges) };
    let qpn = p.ends[0].qpn;
    p.ends[0].nic.post_send(p.now, qpn, &wr).unwrap();
    let frames = p.take(0);
    let lost = 2;
    (0..frames.len()).filter(|k| *k != lost).for_each(|k| p.deliver(&frames[k]));
    assert_eq!(p.ended(), [(1, 9_000 - 1024, EndMark::Last)]);
    let missing = p.missing().unwrap().missing;
    let expected: Vec<_> = (0..4).map(|b| b * 1024 + 512..b * 1024 + 768).collect();
    assert_eq!(missing, expected);
    let mut expected = bytes;
    missing.iter().for_each(|r| expected[r.start as usize..r.end as usize].fill(0));
    assert_eq!(p.ends[1].buffer.to_vec(0, 9_000), expected);
    let bad = SendWr { stride: 3, ..wr };
    let refused = p.ends[0].nic.post_send(p.now, qpn, &bad);
    assert_eq!(refused, Err(PostError::BadStride { given: 3, max: 256 }));
}

#[test]
fn packets_that_contradict_themselves_or_lack_the_token_are_dropped() {
    let mut p = paper();
    p.recv_by(1, 0, 5_000, MS);
    let frames = p.send(1, SendOp::Send, 0, 4_500);
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 6] = [
        ("token", |b| b[27] ^= 1),
        ("fragment outside", |b| b[11] = 5),
        ("wrong mark", |b| b[0] = Opcode::XP_SEND_LAST.0),
        ("length", |b| b[23] ^= 1),
        ("stride", |b| b[24] = 200),
        ("short", |b| drop(b.drain(100..200))),
    ];
    for (what, change) in changes {
        let forged = forge(&frames[3], change);
        let drops = |p: &Pair| {
            let c = p.ends[1].nic.counters();
            c.drop_token + c.drop_malformed
        };
        let before = drops(&p);
        // The first packet of a message determines its length.
        p.deliver(&frames[0]);
        p.deliver(&forged);
        assert_eq!(drops(&p), before + 1, "{what}");
    }
    p.pass(MS);
    assert_eq!(p.ended(), [(1, 1024, EndMark::Deadline)]);
    assert_eq!(p.ends[1].nic.counters().drop_token, 1);
}

#[test]
fn a_send_that_does_not_fit_fails_its_receive_and_the_connection_lives() {
    let mut p = paper();
    p.recv_by(1, 0, 1_000, MS);
    p.recv_by(2, 0, 5_000, MS);
    let frames = p.send(1, SendOp::Send, 0, 1_001);
    p.deliver_all(&frames);
    assert_eq!(p.ends[1].statuses(), [(1, WcStatus::LocLenErr)]);
    let frames = p.send(2, SendOp::Send, 0, 1_001);
    p.deliver_all(&frames);
    assert_eq!(p.ended(), [(2, 1_001, EndMark::Whole)]);
}

#[test]
fn writes_are_checked_as_a_whole() {
    let mut p = paper();
    let remote = Remote { addr: 0x1_0000 + (1 << 20) - 2_000, rkey: p.ends[1].key.0 };
    p.fill(0, 0, 3_000);
    let frames = p.send(1, SendOp::Write(remote), 0, 3_000);
    p.deliver_all(&frames);
    assert_eq!(p.ends[1].nic.counters().access_violations, 3);
    assert_eq!(p.ends[1].buffer.to_vec((1 << 20) - 2_000, 2_000), [0; 2_000]);
}

#[test]
fn trains_are_taken_whole_with_gaps_and_duplicates_among_them() {
    let mut p = logged(1, 0);
    let bytes = p.fill(0, 0, 40_000);
    p.recv_by(1, 0, 40_000, MS);
    let frames = p.send(1, SendOp::Send, 0, 40_000);
    let rest: Vec<usize> = (9..39).collect();
    for datagram in [&[0, 1, 2][..], &[5, 6, 7, 8], &[5, 6, 7], &rest] {
        p.deliver_together(&frames, datagram);
    }
    p.deliver(&frames[39]);
    assert_eq!(p.ended(), [(1, 40_000 - 2 * 1024, EndMark::Last)]);
    assert_eq!(p.one_hole(), 3 * 1024..5 * 1024);
    assert_eq!(p.ends[1].nic.counters().duplicates, 3);
    assert_eq!(p.ends[1].buffer.to_vec(5 * 1024, 34_880), bytes[5 * 1024..]);
}

#[test]
fn trains_of_an_answer_are_taken_whole_with_gaps_and_duplicates_among_them() {
    let mut p = logged(1, 0);
    let bytes = p.fill(1, 0, 40_000);
    let request = p.send(1, SendOp::Read(p.ends[1].remote(0)), 0, 40_000);
    p.deliver_all(&request);
    let frames = p.take(1);
    assert_eq!(frames.len(), 40);
    let rest: Vec<usize> = (9..39).collect();
    for datagram in [&[0, 1, 2][..], &[5, 6, 7, 8], &[5, 6, 7], &rest] {
        p.deliver_together(&frames, datagram);
    }
    assert_eq!(p.ends[0].completions(), []);
    p.deliver(&frames[39]);
    let done = p.ends[0].completions();
    assert_eq!((done[0].byte_len, done[0].end), (40_000 - 2 * 1024, EndMark::Last));
    assert_eq!(p.ends[0].nic.counters().duplicates, 3);
    assert_eq!(p.ends[0].buffer.to_vec(0, 3 * 1024), bytes[..3 * 1024]);
    assert_eq!(p.ends[0].buffer.to_vec(5 * 1024, 34_880), bytes[5 * 1024..]);
    // What comes after the end touches nothing.
    p.fill(1, 0, 40_000);
    let before = p.ends[0].buffer.to_vec(0, 40_000);
    p.deliver_together(&frames, &[3, 4]);
    assert_eq!(p.ends[0].buffer.to_vec(0, 40_000), before);
    assert_eq!(p.ends[0].nic.counters().drop_late, 2);
}

#[test]
fn ending_in_error_flushes_each_request_once() {
    let mut p = paper();
    for wr_id in 1..4 {
        p.recv_by(wr_id, 0, 100, wr_id.abs_diff(4) * MS);
    }
    p.pass(MS);
    assert_eq!(p.ended(), [(3, 0, EndMark::Deadline)]);
    let (now, qpn) = (p.now, p.ends[1].qpn);
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    p.ends[1].nic.modify_qp(now, qpn, &err).unwrap();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(p.ends[1].statuses(), [(1, flushed), (2, flushed)]);
}

#[test]
fn a_shared_receive_queue_is_refused() {
    let mut end = End::new(0, |_| {});
    let srq = end.nic.create_srq(end.pd, 8, 1).unwrap();
    let init = QpInit { srq: Some(srq), ..QpInit::new(QpType::Xp, end.pd, end.cq) };
    assert!(matches!(end.nic.create_qp(&init), Err(ControlError::Invalid { .. })));
}
