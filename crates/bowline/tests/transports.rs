//! Every operation of every transport, between two devices of this process over loopback.

mod common;

use std::time::{Duration, Instant};

use bowline::{
    Access, CompletionError, EndMark, Error, Fault, Payload, QpState, QpType, RecvWr, SendOp,
    SendWr, WcOpcode, WcStatus,
};
use common::{ALL, End, PATIENCE, pair, pattern, poll_one};

#[test]
fn rc_writes_reach_the_peers_memory() {
    let (a, b) = pair(QpType::Rc);
    for len in [1, 3, 8, 4096, 4097, 1 << 20] {
        a.mr.write_at(0, &pattern(len));
        b.mr.fill(0, 1 << 20, 0);
        a.qp.write(len as u64, &a.mr, 0..len, b.remote()).unwrap();
        let completion = poll_one(&a.cq);
        assert_eq!((completion.wr_id, completion.opcode), (len as u64, WcOpcode::Write));
        assert_eq!(b.mr.to_vec(0, len), pattern(len), "{len} bytes");
        assert!(b.mr.to_vec(len, (1 << 20) - len).iter().all(|x| *x == 0), "{len} bytes");
    }
}

#[test]
fn rc_writes_with_immediate_consume_a_receive() {
    let (a, b) = pair(QpType::Rc);
    b.qp.recv(7, &b.mr, 0..0).unwrap();
    a.qp.write_imm(1, &a.mr, 0..100, b.remote(), 0xabcd).unwrap();
    let got = poll_one(&b.cq);
    assert_eq!((got.wr_id, got.opcode), (7, WcOpcode::RecvWriteImm));
    assert_eq!((got.imm, got.byte_len), (Some(0xabcd), 100));
    poll_one(&a.cq);
}

#[test]
fn rc_reads_fetch_the_peers_memory() {
    let (a, b) = pair(QpType::Rc);
    b.mr.write_at(0, &pattern(1 << 20));
    for len in [1, 4096, 5000, 1 << 20] {
        a.mr.fill(0, 1 << 20, 0);
        a.qp.read(1, &a.mr, 0..len, b.remote()).unwrap();
        assert_eq!(poll_one(&a.cq).opcode, WcOpcode::Read);
        assert_eq!(a.mr.to_vec(0, len), pattern(len));
    }
}

#[test]
fn rc_atomics_return_the_word_as_it_was() {
    let (a, b) = pair(QpType::Rc);
    b.mr.store_u64(64, 40);
    let word = b.remote().slice(64..72).unwrap();
    a.qp.fetch_add(1, &a.mr, 0, word, 2).unwrap();
    assert_eq!(poll_one(&a.cq).opcode, WcOpcode::FetchAdd);
    assert_eq!((a.mr.load_u64(0), b.mr.load_u64(64)), (40, 42));

    a.qp.compare_swap(2, &a.mr, 8, word, 42, 7).unwrap();
    assert_eq!(poll_one(&a.cq).opcode, WcOpcode::CompareSwap);
    assert_eq!((a.mr.load_u64(8), b.mr.load_u64(64)), (42, 7));

    a.qp.compare_swap(3, &a.mr, 16, word, 42, 9).unwrap();
    poll_one(&a.cq);
    assert_eq!((a.mr.load_u64(16), b.mr.load_u64(64)), (7, 7));
}

#[test]
fn rc_messages_arrive_in_order() {
    let (a, b) = pair(QpType::Rc);
    for n in 0..32 {
        b.qp.recv(n, &b.mr, n as usize * 8192..(n as usize + 1) * 8192).unwrap();
    }
    for n in 0..32_u64 {
        a.mr.fill(n as usize * 8192, 5000, n as u8);
        a.qp.send_imm(n, &a.mr, n as usize * 8192..n as usize * 8192 + 5000, n as u32).unwrap();
    }
    for n in 0..32 {
        let got = poll_one(&b.cq);
        assert_eq!((got.wr_id, got.imm, got.byte_len), (n, Some(n as u32), 5000));
        assert_eq!(b.mr.to_vec(n as usize * 8192, 5000), vec![n as u8; 5000]);
    }
}

#[test]
fn inline_data_needs_no_registration() {
    let (a, b) = pair(QpType::Rc);
    b.qp.recv(0, &b.mr, 0..64).unwrap();
    let mut bytes = *b"gone at once";
    a.qp.send_inline(1, &bytes).unwrap();
    bytes.fill(0);
    poll_one(&b.cq);
    assert_eq!(b.mr.to_vec(0, 12), b"gone at once");
}

#[test]
fn a_batch_is_posted_at_once() {
    let (a, b) = pair(QpType::Rc);
    let recv = RecvWr::new(0, &[]);
    b.qp.post_recv_batch(&[recv; 10]).unwrap();
    let wr = SendWr { payload: Payload::Inline(&[]), ..SendWr::new(5, SendOp::Send, &[]) };
    a.qp.post_send_batch(&[wr; 10]).unwrap();
    for _ in 0..10 {
        poll_one(&b.cq);
        poll_one(&a.cq);
    }
    // The queue holds 64.
    let error = a.qp.post_send_batch(&[wr; 100]).unwrap_err();
    assert!(matches!(error, Error::Batch(ref e) if e.posted == 64), "{error}");
}

#[test]
fn a_refused_access_names_the_fault() {
    let (a, b) = pair(QpType::Rc);
    let secret = b.pd.register(64, Access::LOCAL_WRITE).unwrap();
    a.qp.write(9, &a.mr, 0..8, secret.remote()).unwrap();
    let error = a.cq.next(PATIENCE).unwrap_err();
    assert_eq!(error.fault(), Fault::Peer, "{error}");
    let Error::Completion(CompletionError { wr_id: 9, status, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(status, WcStatus::RemAccessErr);
    assert_eq!(a.qp.state(), QpState::Err);
    assert_eq!(secret.to_vec(0, 8), [0; 8]);
}

#[test]
fn a_peer_that_never_answers_is_the_paths_fault() {
    let a = End::new(QpType::Rc);
    let mut nobody = a.qp.endpoint();
    nobody.addr = common::random_addr();
    let options = bowline::ConnectOptions { timeout: 8, retry_count: 2, ..Default::default() };
    a.qp.connect_with(&nobody, &options).unwrap();
    a.qp.write(1, &a.mr, 0..8, a.remote()).unwrap();
    let error = a.cq.next(PATIENCE).unwrap_err();
    assert_eq!(error.fault(), Fault::Path, "{error}");
}

#[test]
fn uc_writes_and_sends_arrive() {
    let (a, b) = pair(QpType::Uc);
    a.mr.write_at(0, &pattern(100_000));
    b.qp.recv(1, &b.mr, 0..0).unwrap();
    a.qp.write_imm(1, &a.mr, 0..100_000, b.remote(), 3).unwrap();
    assert_eq!(poll_one(&b.cq).imm, Some(3));
    assert_eq!(b.mr.to_vec(0, 100_000), pattern(100_000));

    b.qp.recv(2, &b.mr, 200_000..300_000).unwrap();
    a.qp.send(2, &a.mr, 0..50_000).unwrap();
    assert_eq!(poll_one(&b.cq).byte_len, 50_000);
    assert_eq!(b.mr.to_vec(200_000, 50_000), pattern(50_000));
}

#[test]
fn ud_datagrams_carry_their_sender() {
    let (a, b) = (End::new(QpType::Ud), End::new(QpType::Ud));
    a.qp.activate().unwrap();
    b.qp.activate().unwrap();
    b.qp.recv(1, &b.mr, 0..4096).unwrap();
    a.mr.write_at(0, &pattern(1000));
    let to = b.qp.endpoint().datagram(b.qp.qkey());
    a.qp.send_to(1, &a.mr, 0..1000, to).unwrap();
    let got = poll_one(&b.cq);
    assert_eq!((got.src_qpn, got.grh), (a.qp.qpn(), true));
    assert_eq!(b.mr.to_vec(40, 1000), pattern(1000));
}

#[test]
fn one_shared_queue_serves_several_queue_pairs() {
    let server = End::new(QpType::Rc);
    let srq = server.pd.create_srq(16, 1).unwrap();
    let clients: Vec<_> = (0..3).map(|_| End::new(QpType::Rc)).collect();
    let served: Vec<_> = clients
        .iter()
        .map(|client| {
            let qp = server.pd.qp(QpType::Rc, &server.cq).srq(&srq).build().unwrap();
            qp.connect(&client.qp.endpoint()).unwrap();
            client.qp.connect(&qp.endpoint()).unwrap();
            qp
        })
        .collect();
    for n in 0..3 {
        srq.recv(n as u64, &server.mr, n * 64..(n + 1) * 64).unwrap();
    }
    for client in &clients {
        client.qp.send(0, &client.mr, 0..16).unwrap();
    }
    let mut from: Vec<_> = (0..3).map(|_| poll_one(&server.cq).qpn).collect();
    from.sort();
    let mut all: Vec<_> = served.iter().map(|qp| qp.qpn()).collect();
    all.sort();
    assert_eq!(from, all);
}

#[test]
fn misuse_is_refused_before_anything_is_sent() {
    let (a, b) = pair(QpType::Rc);
    let foreign = b.pd.register(64, ALL).unwrap();
    let error = a.qp.send(0, &foreign, 0..8).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    let error = a.qp.send(0, &a.mr, 0..(1 << 20) + 1).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    let error = a.qp.write(0, &a.mr, 0..65, foreign.remote()).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    let error = a.pd.qp(QpType::Rc, &b.cq).build().unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(error.fault(), Fault::Caller);
}

#[test]
fn xp_messages_arrive_and_end_by_their_deadline() {
    let (a, b) = pair(QpType::Xp);
    a.mr.write_at(0, &pattern(100_000));
    b.qp.recv(1, &b.mr, 0..0).unwrap();
    a.qp.write_imm(1, &a.mr, 0..100_000, b.remote(), 3).unwrap();
    let got = poll_one(&b.cq);
    assert_eq!((got.imm, got.byte_len, got.end), (Some(3), 100_000, EndMark::Whole));
    assert_eq!(b.mr.to_vec(0, 100_000), pattern(100_000));

    // Nobody sends to this one.
    let timeout = Duration::from_millis(20);
    let started = Instant::now();
    let deadline = b.qp.deadline_in(timeout).unwrap();
    let sges = [b.mr.sge(200_000..300_000).unwrap()];
    b.qp.post_recv(&RecvWr { deadline, ..RecvWr::new(2, &sges) }).unwrap();
    let got = poll_one(&b.cq);
    assert_eq!((got.wr_id, got.byte_len, got.end), (2, 0, EndMark::Deadline));
    assert!(started.elapsed() >= timeout);

    // So the next message is not its.
    b.qp.recv(3, &b.mr, 200_000..300_000).unwrap();
    a.qp.send(2, &a.mr, 0..50_000).unwrap();
    a.qp.send(3, &a.mr, 50_000..60_000).unwrap();
    let got = poll_one(&b.cq);
    assert_eq!((got.wr_id, got.byte_len), (3, 10_000));
    assert_eq!(b.mr.to_vec(200_000, 10_000), pattern(60_000)[50_000..]);

    let reads = a.qp.read(4, &a.mr, 0..50_000, b.remote().slice(200_000..250_000).unwrap());
    reads.unwrap();
    let read = std::iter::repeat_with(|| poll_one(&a.cq)).find(|got| got.wr_id == 4).unwrap();
    assert_eq!((read.byte_len, read.end), (50_000, EndMark::Whole));
}
