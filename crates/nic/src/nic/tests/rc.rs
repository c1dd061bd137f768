//! Reliable connections, packet by packet.

use super::*;

const OK: WcStatus = WcStatus::Success;

#[test]
fn a_write_of_every_size_around_the_mtu_arrives_whole() {
    for len in [0usize, 1, 3, 4, 1023, 1024, 1025, 2048, 2049, 100_000] {
        let mut p = Pair::rc();
        let bytes = p.fill(0, 0, len);
        let (sge, remote) = (p.ends[0].sge(0, len as u32), p.ends[1].remote(5));
        p.post(0, 1, SendOp::Write(remote), &[sge]);
        p.exchange();
        assert_eq!(p.ends[0].statuses(), [(1, OK)], "{len} bytes");
        assert_eq!(p.ends[1].buffer.to_vec(5, len), bytes);
        assert_eq!(p.ends[1].buffer.to_vec(5 + len, 8), [0; 8], "nothing behind it");
        p.run_out();
    }
}

#[test]
fn a_send_is_gathered_and_scattered() {
    let mut p = Pair::rc();
    let bytes = p.fill(0, 0, 5_000);
    let e = &p.ends[1];
    let scatter = [e.sge(0, 100), e.sge(10_000, 0), e.sge(20_000, 3_000), e.sge(30_000, 3_000)];
    p.recv(1, 9, &scatter);
    let e = &p.ends[0];
    let gather = [e.sge(0, 1), e.sge(1, 2_000), e.sge(2_001, 2_999)];
    p.post(0, 1, SendOp::SendImm(0xabcd), &gather);
    p.exchange();
    let got = p.ends[1].completions();
    assert_eq!((got[0].wr_id, got[0].byte_len, got[0].imm), (9, 5_000, Some(0xabcd)));
    assert_eq!(got[0].opcode, WcOpcode::Recv);
    let b = &p.ends[1].buffer;
    let got = [b.to_vec(0, 100), b.to_vec(20_000, 3_000), b.to_vec(30_000, 1_900)].concat();
    assert_eq!(got, bytes);
}

#[test]
fn a_write_with_immediate_consumes_a_receive() {
    let mut p = Pair::rc();
    p.fill(0, 0, 3_000);
    p.recv(1, 7, &[]);
    let (sge, remote) = (p.ends[0].sge(0, 3_000), p.ends[1].remote(0));
    p.post(0, 1, SendOp::WriteImm(remote, 42), &[sge]);
    p.exchange();
    let got = p.ends[1].completions();
    assert_eq!((got[0].wr_id, got[0].imm, got[0].byte_len), (7, Some(42), 3_000));
    assert_eq!(got[0].opcode, WcOpcode::RecvWriteImm);
}

#[test]
fn a_read_larger_than_a_piece_arrives_whole() {
    let mut p = Pair::rc();
    let bytes = p.fill(1, 0, 700_001);
    let (sge, remote) = (p.ends[0].sge(3, 700_001), p.ends[1].remote(0));
    p.post(0, 1, SendOp::Read(remote), &[sge]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[0].buffer.to_vec(3, 700_001), bytes);
    p.run_out();
}

#[test]
fn atomics_return_the_original_and_change_the_word() {
    let mut p = Pair::rc();
    p.ends[1].buffer.store_u64(64, 40);
    let (sge, remote) = (p.ends[0].sge(0, 8), p.ends[1].remote(64));
    p.post(0, 1, SendOp::FetchAdd { remote, add: 2 }, &[sge]);
    p.exchange();
    assert_eq!(p.ends[0].buffer.load_u64(0), 40);
    assert_eq!(p.ends[1].buffer.load_u64(64), 42);
    p.post(0, 2, SendOp::CompareSwap { remote, compare: 42, swap: 7 }, &[sge]);
    p.post(0, 3, SendOp::CompareSwap { remote, compare: 42, swap: 8 }, &[sge]);
    p.exchange();
    assert_eq!(p.ends[1].buffer.load_u64(64), 7);
    assert_eq!(p.ends[0].buffer.load_u64(0), 7, "the second comparison saw the first one's value");
}

#[test]
fn a_lost_packet_is_nakked_once_and_sent_again() {
    let mut p = Pair::rc();
    let bytes = p.fill(0, 0, 8_000);
    let (sge, remote) = (p.ends[0].sge(0, 8_000), p.ends[1].remote(0));
    p.post(0, 1, SendOp::Write(remote), &[sge]);
    let frames = p.take(0);
    assert_eq!(frames.len(), 8);
    for (i, f) in frames.iter().enumerate() {
        if i != 2 {
            p.deliver(f);
        }
    }
    let answers = p.take(1);
    assert_eq!(answers.len(), 1, "one NAK, whatever arrives behind the hole");
    p.deliver_all(&answers);
    let again = p.take(0);
    assert_eq!(again.len(), 6, "everything from the hole on");
    p.deliver_all(&again);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[1].buffer.to_vec(0, 8_000), bytes);
    assert_eq!(p.ends[0].nic.counters().retransmitted_packets, 6);
    assert_eq!(p.ends[1].nic.counters().tx_nak_sequence, 1);
}

#[test]
fn a_nak_that_comes_often_costs_one_retry() {
    let mut p = Pair::rc();
    let bytes = p.fill(0, 0, 8_000);
    let (sge, remote) = (p.ends[0].sge(0, 8_000), p.ends[1].remote(0));
    p.post(0, 1, SendOp::Write(remote), &[sge]);
    let frames = p.take(0);
    p.deliver_all(&frames[..2]);
    p.deliver_all(&frames[3..]);
    let nak = p.take(1);
    for _ in 0..10 {
        p.deliver_all(&nak);
    }
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[1].buffer.to_vec(0, 8_000), bytes);
    assert_eq!(p.ends[0].nic.counters().retransmitted_packets, 6, "sent again once");
}

#[test]
fn a_peer_that_gets_on_behind_a_lost_answer_is_not_given_up() {
    let mut p = Pair::rc();
    let bytes = p.fill(1, 0, 1_000);
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(20_000, 1_000)]);
    p.post(0, 2, SendOp::Write(p.ends[1].remote(50_000)), &[p.ends[0].sge(0, 10_000)]);
    let mut frames = p.take(0);
    assert_eq!(frames.len(), 11);
    p.deliver(&frames[0]);
    assert_eq!(p.take(1).len(), 1, "the answer is lost");
    // The READ is lost from now on, and one more packet of the WRITE arrives each time.
    for i in 1..9 {
        p.deliver(&frames[i]);
        p.deliver(&frames[i + 2]);
        let nak = p.take(1);
        assert_eq!(nak.len(), 1);
        p.deliver_all(&nak);
        frames = p.take(0);
        assert_eq!(frames.len(), 11, "from the READ on");
    }
    p.deliver_all(&frames);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.ends[0].buffer.to_vec(20_000, 1_000), bytes);
}

#[test]
fn packets_swapped_within_a_batch_need_no_retransmission() {
    let mut p = Pair::rc();
    p.fill(0, 0, 3_000);
    let (sge, remote) = (p.ends[0].sge(0, 2_000), p.ends[1].remote(0));
    p.post(0, 1, SendOp::Write(remote), &[sge]);
    let frames = p.take(0);
    p.deliver(&frames[1]);
    p.deliver(&frames[0]);
    p.deliver(&frames[1]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[0].nic.counters().retransmitted_packets, 0);
}

#[test]
fn a_lost_acknowledgement_is_repeated_for_a_duplicate() {
    let mut p = Pair::rc();
    p.recv(1, 5, &[p.ends[1].sge(0, 100)]);
    p.post(0, 1, SendOp::Send, &[p.ends[0].sge(0, 10)]);
    let frames = p.take(0);
    p.deliver_all(&frames);
    assert_eq!(p.take(1).len(), 1, "this acknowledgement is lost");
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[1].statuses(), [(5, OK)], "delivered once");
    assert_eq!(p.ends[0].nic.counters().timeouts, 1);
    assert_eq!(p.ends[1].nic.counters().duplicates, 1);
}

#[test]
fn a_repeated_atomic_is_answered_from_the_record() {
    let mut p = Pair::rc();
    let (sge, remote) = (p.ends[0].sge(0, 8), p.ends[1].remote(0));
    p.post(0, 1, SendOp::FetchAdd { remote, add: 5 }, &[sge]);
    let frames = p.take(0);
    p.deliver_all(&frames);
    assert_eq!(p.take(1).len(), 1, "this answer is lost");
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[1].buffer.load_u64(0), 5, "added once");
    assert_eq!(p.ends[0].buffer.load_u64(0), 0);
}

#[test]
fn a_read_with_a_lost_response_goes_on_from_the_hole() {
    let mut p = Pair::rc();
    let bytes = p.fill(1, 0, 10_000);
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 10_000)]);
    let request = p.take(0);
    p.deliver_all(&request);
    let responses = p.take(1);
    assert_eq!(responses.len(), 10);
    for (i, f) in responses.iter().enumerate() {
        if i != 4 {
            p.deliver(f);
        }
    }
    let again = p.take(0);
    assert_eq!(again.len(), 1);
    let reth = parse(&again[0]).reth().unwrap();
    assert_eq!((reth.va, reth.len), (0x1_0000 + 4 * 1024, 10_000 - 4 * 1024));
    p.deliver_all(&again);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[0].buffer.to_vec(0, 10_000), bytes);
}

#[test]
fn an_acknowledgement_beyond_an_unanswered_read_does_not_complete_it() {
    let mut p = Pair::rc();
    let bytes = p.fill(1, 0, 1_000);
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 1_000)]);
    p.post(0, 2, SendOp::Write(p.ends[1].remote(50_000)), &[p.ends[0].sge(5_000, 8)]);
    let frames = p.take(0);
    p.deliver_all(&frames);
    let answers = p.take(1);
    let ack: Vec<_> = answers.into_iter().filter(|f| f.opcode() == Opcode::RC_ACK).collect();
    assert_eq!(ack.len(), 1);
    p.deliver_all(&ack);
    assert_eq!(p.ends[0].statuses(), [], "the data has not come");
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.ends[0].buffer.to_vec(0, 1_000), bytes);
}

#[test]
fn without_a_receive_the_sender_waits_and_then_gives_up() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Send, &[p.ends[0].sge(0, 10)]);
    p.post(0, 2, SendOp::Send, &[p.ends[0].sge(0, 10)]);
    p.run_out();
    let flushed = (2, WcStatus::WrFlushErr);
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RnrRetryExcErr), flushed]);
    assert_eq!(p.ends[0].state(), QpState::Err);
    assert_eq!(p.ends[1].nic.counters().tx_rnr, 3, "rnr_retry of 2 makes three attempts");
}

#[test]
fn a_receive_posted_late_is_found_after_the_rnr_wait() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Send, &[p.ends[0].sge(0, 10)]);
    p.exchange();
    p.recv(1, 5, &[p.ends[1].sge(0, 10)]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [], "the wait is not over");
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[1].statuses(), [(5, OK)]);
}

#[test]
fn a_sequence_nak_behind_an_rnr_nak_costs_no_retry() {
    // Linux's rxe answers a pipeline that meets no receive with both, for the same PSN.
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Send, &[p.ends[0].sge(0, 10)]);
    let frames = p.take(0);
    p.deliver_all(&frames);
    let rnr = p.take(1).remove(0);
    let nak = forge(&rnr, |b| b[12] = 0x60);
    p.deliver(&rnr);
    for _ in 0..10 {
        p.deliver(&nak);
    }
    assert_eq!(p.ends[0].statuses(), [], "it waits");
    assert!(p.take(0).is_empty(), "and does not send before the time is up");
    p.recv(1, 5, &[p.ends[1].sge(0, 10)]);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
}

#[test]
fn a_silent_peer_exhausts_the_retries() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 10)]);
    let start = p.now;
    for _ in 0..20 {
        p.take(0);
        p.fire_timer();
    }
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(p.ends[0].nic.counters().timeouts, 4, "retry_count of 3: three more attempts");
    assert_eq!((p.now - start).as_nanos(), 4 * (4096 << 10));
    assert_eq!(p.ends[0].nic.poll_timeout(), None);
}

#[test]
fn bad_requests_are_refused_as_the_standard_says_and_touch_nothing() {
    let outside = |p: &Pair, addr: u64| Remote { addr, ..p.ends[1].remote(0) };
    let cases: [&dyn Fn(&Pair) -> SendOp; 5] = [
        &|p| SendOp::Write(Remote { rkey: p.ends[1].key.0 ^ 1, ..p.ends[1].remote(0) }),
        &|p| SendOp::Write(p.ends[1].remote((1 << 20) - 7)),
        &|p| SendOp::Write(outside(p, 0xffff)),
        &|p| SendOp::Read(outside(p, u64::MAX - 3)),
        &|p| SendOp::FetchAdd { remote: p.ends[1].remote(1 << 20), add: 1 },
    ];
    for (i, op) in cases.into_iter().enumerate() {
        let mut p = Pair::rc();
        p.ends[0].buffer.fill(0, 64, 0xee);
        let before = p.ends[1].buffer.to_vec(0, 1 << 20);
        p.post(0, 1, op(&p), &[p.ends[0].sge(0, 8)]);
        p.exchange();
        assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemAccessErr)], "case {i}");
        assert_eq!(p.ends[1].nic.counters().access_violations, 1);
        assert_eq!(p.ends[1].state(), QpState::Err);
        assert!(p.ends[1].buffer.to_vec(0, 1 << 20) == before, "case {i} changed memory");
        let qpn = p.ends[1].qpn;
        let events: Vec<_> = std::iter::from_fn(|| p.ends[1].nic.poll_event()).collect();
        assert!(events.contains(&Event::QpAccessError(qpn)));
    }
}

#[test]
fn a_region_deregistered_under_a_read_is_not_read() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 10_000)]);
    let request = p.take(0);
    p.deliver_all(&request);
    let key = p.ends[1].key;
    p.ends[1].nic.deregister(key).unwrap();
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn a_message_longer_than_the_receive_fails_both_ends() {
    let mut p = Pair::rc();
    p.recv(1, 5, &[p.ends[1].sge(0, 1_500)]);
    p.recv(1, 6, &[p.ends[1].sge(0, 1_500)]);
    p.post(0, 1, SendOp::Send, &[p.ends[0].sge(0, 2_000)]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemInvReqErr)]);
    let flushed = (6, WcStatus::WrFlushErr);
    assert_eq!(p.ends[1].statuses(), [(5, WcStatus::LocLenErr), flushed]);
}

#[test]
fn a_bad_local_key_fails_after_what_was_posted_before_it() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 5_000)]);
    let bad = Sge { lkey: 1, ..p.ends[0].sge(0, 8) };
    p.post(0, 2, SendOp::Write(p.ends[1].remote(0)), &[bad]);
    p.post(0, 3, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    p.exchange();
    let flushed = (3, WcStatus::WrFlushErr);
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, WcStatus::LocProtErr), flushed]);
}

#[test]
fn send_with_invalidate_revokes_remote_use_of_a_key() {
    let mut p = Pair::rc();
    p.recv(1, 5, &[]);
    let rkey = p.ends[1].key.0;
    p.post(0, 1, SendOp::SendInvalidate(rkey), &[]);
    p.exchange();
    assert_eq!(p.ends[1].completions()[0].invalidated, Some(rkey));
    p.post(0, 2, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, WcStatus::RemAccessErr)]);
}

#[test]
fn a_fence_waits_for_reads() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 100)]);
    let wr = SendWr {
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        ..SendWr::new(2, SendOp::Write(p.ends[1].remote(0)), &[])
    };
    let end = &mut p.ends[0];
    end.nic.post_send(p.now, end.qpn, &wr).unwrap();
    let first = p.take(0);
    assert_eq!(first.len(), 1, "only the READ");
    p.deliver_all(&first);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, OK)]);
}

#[test]
fn a_read_of_a_few_packets_is_asked_for_in_pairs() {
    const MTU: usize = 1024;
    for packets in 2..=17 {
        for len in [(packets - 1) * MTU + 1, packets * MTU] {
            let mut p = Pair::with_reads(Mtu::B1024, 64, |_| {});
            let bytes = p.fill(1, 5, len);
            p.post(0, 1, SendOp::Read(p.ends[1].remote(5)), &[p.ends[0].sge(0, len as u32)]);
            let requests = p.take(0);
            let asked = if packets <= 16 { packets.div_ceil(2) } else { 1 };
            assert_eq!(requests.len(), asked, "{len} bytes");
            p.deliver_all(&requests);
            let mut answers = p.take(1);
            if packets % 2 == 0 && packets <= 16 && len == packets * MTU {
                assert!(answers.iter().all(|f| f.bytes.len() == answers[0].bytes.len()), "{len}");
            }
            // One that is lost is asked for again, from where it began.
            answers.remove(answers.len() / 2);
            p.deliver_all(&answers);
            p.run_out();
            assert_eq!(p.ends[0].statuses(), [(1, OK)], "{len} bytes");
            assert_eq!(p.ends[0].buffer.to_vec(0, len), bytes);
            assert_eq!(p.ends[0].buffer.to_vec(len, 8), [0; 8], "nothing behind it");
        }
    }
}

#[test]
fn outstanding_reads_are_limited() {
    let mut p = Pair::rc();
    for i in 0..10 {
        p.post(0, i, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 100)]);
    }
    assert_eq!(p.take(0).len(), 4, "max_rd_atomic");
    p.run_out();
    assert_eq!(p.ends[0].statuses().len(), 10);
}

#[test]
fn the_window_limits_what_is_in_flight_and_always_reopens() {
    let mut p = Pair::rc();
    let qpn = p.ends[0].qpn;
    p.ends[0].nic.set_window(qpn, 8 * 1024).unwrap();
    let bytes = p.fill(0, 0, 100_000);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 100_000)]);
    let first = p.take(0);
    assert_eq!(first.len(), 8);
    assert!(parse(&first[7]).ack_req(), "who fills the window asks for an acknowledgement");
    p.deliver_all(&first);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert_eq!(p.ends[1].buffer.to_vec(0, 100_000), bytes);
    assert_eq!(p.ends[0].nic.counters().timeouts, 0);
}

#[test]
fn acknowledgements_of_many_messages_share_a_packet() {
    let mut p = Pair::rc();
    for i in 0..40 {
        p.post(0, i, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 64)]);
    }
    let frames = p.take(0);
    p.deliver_all(&frames);
    assert_eq!(p.take(1).len(), 1);
}

#[test]
fn unsignaled_requests_complete_silently() {
    let mut p = Pair::rc();
    let sge = [p.ends[0].sge(0, 8)];
    let op = SendOp::Write(p.ends[1].remote(0));
    let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(1, op, &sge) };
    let (now, qpn) = (p.now, p.ends[0].qpn);
    for _ in 0..64 {
        p.ends[0].nic.post_send(now, qpn, &wr).unwrap();
    }
    assert_eq!(p.ends[0].nic.post_send(now, qpn, &wr), Err(PostError::Full));
    p.exchange();
    assert_eq!(p.ends[0].statuses(), []);
    p.post(0, 2, op, &sge);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(2, OK)]);
}

#[test]
fn a_draining_queue_finishes_what_it_started_and_says_so() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 5_000)]);
    let frames = p.take(0);
    let (now, qpn) = (p.now, p.ends[0].qpn);
    let sqd = QpAttr { state: Some(QpState::Sqd), sqd_notify: Some(true), ..QpAttr::default() };
    p.ends[0].nic.modify_qp(now, qpn, &sqd).unwrap();
    p.post(0, 2, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    assert_eq!(p.ends[0].nic.poll_event(), None);
    p.deliver_all(&frames);
    p.exchange();
    assert_eq!(p.ends[0].nic.poll_event(), Some(Event::SqDrained(qpn)));
    assert_eq!(p.ends[0].statuses(), [(1, OK)], "the second has not started");
    let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    p.ends[0].nic.modify_qp(now, qpn, &rts).unwrap();
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(2, OK)]);
}

#[test]
fn marked_packets_bring_cnps_that_slow_the_sender_down() {
    let mut p = Pair::rc();
    let line = 10_000_000_000;
    let (now, qpn) = (p.now, p.ends[0].qpn);
    let dcqcn = RateControl::Dcqcn(crate::rate::DcqcnParams::new(line));
    p.ends[0].nic.set_rate_controller(now, qpn, dcqcn.factory()).unwrap();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 1_000)]);
    let mut frames = p.take(0);
    assert_eq!(frames[0].meta.tos & 3, crate::frame::ECN_ECT0);
    frames[0].meta.tos |= crate::frame::ECN_CE;
    p.deliver_all(&frames);
    let answers = p.take(1);
    assert!(answers.iter().any(|f| f.opcode() == Opcode::CNP));
    p.deliver_all(&answers);
    assert_eq!(p.ends[0].nic.rate_bps(now, qpn), Some(line / 2));
    assert_eq!(p.ends[0].nic.counters().rx_cnps, 1);
}

#[test]
fn a_round_trip_longer_than_the_timeout_is_learnt_and_waited_for() {
    let mut p = Pair::rc();
    let timeout_ns = 4096 << 10;
    let mut timeouts = Vec::new();
    for i in 0..5 {
        p.post(0, i, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 64)]);
        let mut frames = p.take(0);
        // The response takes three timeouts; the network holds everything meanwhile.
        let arrives = p.now.plus_nanos(3 * timeout_ns);
        while p.ends[0].nic.poll_timeout().is_some_and(|at| at < arrives) {
            p.fire_timer();
            frames.extend(p.take(0));
        }
        p.now = arrives;
        p.deliver_all(&frames);
        p.exchange();
        timeouts.push(p.ends[0].nic.counters().timeouts);
    }
    assert_eq!(p.ends[0].statuses().len(), 5);
    assert_eq!(timeouts, [2, 2, 2, 2, 2], "surprised once, patient from then on");
}

/// A just-acknowledged QP has more to send, and finds the window space that this freed: the space
/// belongs to the waiters.
#[test]
fn qps_that_share_a_window_have_equal_shares_of_it() {
    const QPS: usize = 48;
    const LEN: u32 = 1 << 20;
    let mut pair = Pair::rc();
    let now = pair.now;
    let qpns: Vec<[Qpn; 2]> = (0..QPS)
        .map(|_| {
            pair.ends
                .each_mut()
                .map(|end| end.nic.create_qp(&QpInit::new(QpType::Rc, end.pd, end.cq)).unwrap())
        })
        .collect();
    for both in &qpns {
        for (i, end) in pair.ends.iter_mut().enumerate() {
            let to = connect_to(addr(1 - i), both[1 - i]);
            end.nic.connect(now, both[i], &to).unwrap();
        }
    }
    let remote = pair.ends[1].remote(0);
    let post = |pair: &mut Pair, n: usize| {
        let sges = [pair.ends[0].sge(0, LEN)];
        let wr = SendWr::new(n as u64, SendOp::Write(remote), &sges);
        pair.ends[0].nic.post_send(pair.now, qpns[n][0], &wr).unwrap();
    };
    for n in (0..QPS).chain(0..QPS) {
        post(&mut pair, n);
    }
    let mut done = [0; QPS];
    let mut wire = std::collections::VecDeque::from(pair.take(0));
    while done.iter().sum::<usize>() < 4 * QPS {
        // The wire is never empty: a receiver takes some of what is there, and its acknowledgements
        // free window space.
        for frame in wire.drain(..16.min(wire.len())).collect::<Vec<_>>() {
            pair.deliver(&frame);
        }
        for answer in pair.take(1) {
            pair.deliver(&answer);
        }
        for completion in pair.ends[0].completions() {
            assert_eq!(completion.status, WcStatus::Success);
            done[completion.wr_id as usize] += 1;
            post(&mut pair, completion.wr_id as usize);
        }
        wire.extend(pair.take(0));
        pair.now = pair.now.plus_nanos(4_000);
        let now = pair.now;
        pair.ends[0].nic.handle_timeout(now);
    }
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(most - least <= 1, "{done:?}");
    assert_eq!(pair.ends[0].nic.counters().timeouts, 0);
}

/// A QP that waits for the window but has READs to answer continues with those, batch by batch.
#[test]
fn a_qp_that_waits_in_line_and_goes_on_as_well_is_called_once() {
    let mut pair = Pair::rc();
    let (remote, local) = (pair.ends[1].remote(0), pair.ends[0].remote(0));
    let (data, answer) = (pair.ends[0].sge(0, 1 << 20), pair.ends[1].sge(0, 512 << 10));
    for wr_id in 0..3 {
        pair.post(0, wr_id, SendOp::Write(remote), &[data]);
    }
    pair.post(1, 9, SendOp::Read(local), &[answer]);
    let mut wire = pair.take(0);
    assert!(wire.len() < 3 << 10, "the window is full, and it waits");
    for frame in pair.take(1) {
        pair.deliver(&frame);
    }
    // It is acknowledged after some of its responses, and before the others.
    wire.extend(pair.take_batch(0));
    while !wire.is_empty() {
        for frame in &wire {
            pair.deliver(frame);
        }
        for frame in pair.take(1) {
            pair.deliver(&frame);
        }
        wire = pair.take(0);
    }
    assert_eq!(pair.ends[0].statuses().len(), 3);
    assert_eq!(pair.ends[1].statuses().len(), 1);
    let end = &pair.ends[0];
    let qp = end.nic.qps[end.nic.slot(end.qpn).unwrap() as usize].as_ref().unwrap();
    assert!(
        !end.nic.shared.sched.paths.has_line(qp.core.limits.path.unwrap(), false),
        "nobody is in line"
    );
}

#[test]
fn what_is_overdue_can_be_sent_again_before_the_timer() {
    let mut p = Pair::rc();
    p.recv(1, 9, &[]);
    p.post(0, 1, SendOp::SendImm(5), &[]);
    let lost = p.take(0);
    let timer = p.ends[0].nic.poll_timeout();
    p.now = p.now.plus_nanos(1_000);
    let (now, qpn) = (p.now, p.ends[0].qpn);
    for _ in 0..20 {
        p.ends[0].nic.resend(now, qpn).unwrap();
        assert_eq!(p.take(0).len(), lost.len());
        assert_eq!(p.ends[0].nic.poll_timeout(), timer, "as late as without");
    }
    p.ends[0].nic.resend(now, qpn).unwrap();
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.ends[1].statuses(), [(9, WcStatus::Success)]);
    p.ends[0].nic.resend(now, qpn).unwrap();
    assert!(p.take(0).is_empty(), "all is acknowledged");
}

#[test]
fn a_message_is_acknowledged_before_it_is_answered() {
    let mut p = Pair::rc();
    let sge = p.ends[0].sge(0, 100);
    for n in 0..6 {
        for i in 0..2 {
            p.recv(i, n, &[p.ends[i].sge(1000, 100)]);
        }
        p.post(0, n, SendOp::Send, &[sge]);
        let frames = p.take(0);
        p.deliver_all(&frames);
        // The program sees its receive, and answers before the NIC has had a turn.
        assert_eq!(p.ends[1].statuses(), [(n, OK)]);
        p.post(1, n, SendOp::Send, &[p.ends[1].sge(0, 100)]);
        let answers = p.take(1);
        let opcodes: Vec<Opcode> = answers.iter().map(Frame::opcode).collect();
        assert_eq!(opcodes, [Opcode::RC_ACK, Opcode::RC_SEND_ONLY], "turn {n}");
        p.deliver_all(&answers);
        let kinds: Vec<WcOpcode> = p.ends[0].completions().iter().map(|c| c.opcode).collect();
        assert_eq!(kinds, [WcOpcode::Send, WcOpcode::Recv], "turn {n}");
        p.exchange();
        assert_eq!(p.ends[1].statuses(), [(n, OK)]);
    }
}
