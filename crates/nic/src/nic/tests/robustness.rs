//! Robustness against any input: no panic, no write outside, no growth.

use proptest::prelude::*;

use super::*;

/// A region only parts of which may change, and a QP with traffic in both directions.
fn busy_pair() -> Pair {
    let mut p = Pair::rc();
    for i in 0..8 {
        p.recv(1, i, &[p.ends[1].sge(4096, 512)]);
    }
    p.post(1, 1, SendOp::Read(p.ends[0].remote(0)), &[p.ends[1].sge(8192, 5_000)]);
    p.post(1, 2, SendOp::FetchAdd { remote: p.ends[0].remote(0), add: 1 }, &[p.ends[1].sge(0, 8)]);
    p.take(1);
    p
}

fn meta() -> FrameMeta {
    FrameMeta { src: addr(0), dst: addr(1), src_port: 4791, tos: 0, ttl: 64, ip_id: IpId::Known(0) }
}

/// A frame with a valid ICRC for the second end's QP, of any opcode, PSN near the expected ones,
/// and any headers and payload.
fn sealed(qpn: Qpn, opcode: u8, psn: u32, flags: u8, rest: &[u8]) -> Frame {
    let mut bytes = vec![opcode, flags, 0xff, 0xff, 0];
    bytes.extend_from_slice(&qpn.get().to_be_bytes()[1..]);
    bytes.push(0x80);
    bytes.extend_from_slice(&psn.to_be_bytes()[1..]);
    bytes.extend_from_slice(rest);
    bytes.extend_from_slice(&[0; 4]);
    forge(&Frame { to: 1, meta: meta(), bytes }, |_| {})
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_dropped(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
    ) {
        let mut p = busy_pair();
        for bytes in frames {
            p.deliver(&Frame { to: 1, meta: meta(), bytes });
            p.take(1);
        }
        prop_assert_eq!(p.ends[1].state(), QpState::Rts);
    }

    #[test]
    fn well_sealed_nonsense_never_writes_outside_what_it_may(
        frames in prop::collection::vec(
            (
                any::<u8>(),
                -6i32..12,
                any::<u8>(),
                prop::collection::vec(any::<u8>(), 0..80),
                any::<bool>(),
            ),
            1..30,
        ),
        key_known in any::<bool>(),
    ) {
        let mut p = busy_pair();
        // Remote access is off: only posted receives and answers to our own requests may write.
        let key = p.ends[1].key;
        let qpn = p.ends[1].qpn;
        if !key_known {
            let end = &mut p.ends[1];
            let before = end.buffer.clone();
            end.nic.deregister(key).unwrap();
            let (region, access) = (Region::owned(before), Access::LOCAL_WRITE);
            end.key = end.nic.register(end.pd, region, 0x1_0000, access).unwrap();
        }
        let before = p.ends[1].buffer.to_vec(0, 1 << 20);
        for (opcode, delta, flags, rest, service_rc) in frames {
            let opcode = if service_rc { opcode & 0x1f } else { opcode };
            let base: u32 = if matches!(opcode, 0x0d..=0x12) { 0xfffff0 } else { 0xfffffd };
            let psn = base.wrapping_add_signed(delta) & 0xff_ffff;
            p.deliver(&sealed(qpn, opcode, psn, flags & 0xf0, &rest));
            p.take(1);
        }
        let after = p.ends[1].buffer.to_vec(0, 1 << 20);
        let allowed = |i: usize| (4096..4608).contains(&i) || (8192..13_192).contains(&i) || i < 8;
        for (i, (a, b)) in before.iter().zip(&after).enumerate() {
            prop_assert!(a == b || allowed(i), "byte {} changed", i);
        }
        for _ in 0..50 {
            p.take(1);
            if !p.fire_timer() {
                break;
            }
        }
        prop_assert_eq!(p.ends[1].nic.poll_timeout(), None);
    }

    #[test]
    fn one_flipped_bit_is_always_noticed(bit in 0usize..(1056 + 4) * 8, guess in any::<bool>()) {
        let mut p = Pair::rc();
        p.fill(0, 0, 1_024);
        p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 1_024)]);
        let mut frame = p.take(0).remove(0);
        let bits = frame.bytes.len() * 8;
        let at = bit % bits;
        // The ICRC does not cover byte 4 (FECN, BECN, reserved), as in the standard.
        prop_assume!(at / 8 != 4);
        frame.bytes[at / 8] ^= 1 << (at % 8);
        if guess {
            frame.meta.ip_id = IpId::Guess(0);
        }
        p.deliver(&frame);
        prop_assert!(p.ends[1].buffer.to_vec(0, 1 << 20).iter().all(|b| *b == 0));
        prop_assert_eq!(p.take(1).len(), 0, "nobody answers a broken packet");
    }
}

#[test]
fn a_foreign_sender_is_accepted_until_the_peer_is_known_to_be_ours() {
    let mut p = Pair::rc();
    let send = |p: &mut Pair, id: u16| {
        p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
        let frame = p.take(0).remove(0);
        p.deliver(&renumbered(&frame, id));
        p.deliver(&frame);
        p.exchange();
        p.ends[0].completions();
        p.ends[1].nic.counters().icrc_solved
    };
    assert_eq!(send(&mut p, 40_000), 1);
    for _ in 0..600 {
        send(&mut p, 5);
    }
    assert_eq!(send(&mut p, 40_001), 1, "from a peer of ours that is corruption");
    assert_eq!(p.ends[1].nic.counters().drop_icrc, 1);
}

#[test]
fn a_packet_from_another_address_is_refused() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    let mut frame = p.take(0).remove(0);
    frame.meta.src = addr(7);
    let frame = forge(&frame, |_| {});
    p.deliver(&frame);
    assert_eq!(p.ends[1].nic.counters().drop_wrong_peer, 1);
}

#[test]
fn a_peer_that_acknowledges_what_was_never_sent_is_ignored() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 2_000)]);
    let frames = p.take(0);
    p.deliver_all(&frames);
    let ack = p.take(1).remove(0);
    let lie = forge(&ack, |b| b[11] = b[11].wrapping_add(1));
    p.deliver(&lie);
    assert_eq!(p.ends[0].statuses(), []);
    assert_eq!(p.ends[0].nic.counters().drop_stale, 1);
    p.deliver(&ack);
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_read_answer_of_the_wrong_length_fails_the_request() {
    let mut p = Pair::rc();
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 100)]);
    let request = p.take(0);
    p.deliver_all(&request);
    let answer = p.take(1).remove(0);
    let short = forge(&answer, |b| {
        let keep = b.len() - 4 - 60;
        b.truncate(keep + 4);
    });
    p.deliver(&short);
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::BadRespErr)]);
    assert_eq!(p.ends[0].buffer.to_vec(0, 100), [0; 100]);
}

#[test]
fn a_write_that_is_longer_than_announced_is_refused() {
    let mut p = Pair::rc();
    p.ends[0].buffer.fill(0, 3_000, 1);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 3_000)]);
    let frames = p.take(0);
    // The announced length ends within the second packet.
    let lie = forge(&frames[0], |b| b[24..28].copy_from_slice(&1_500u32.to_be_bytes()));
    p.deliver(&lie);
    p.deliver(&frames[1]);
    assert_eq!(p.ends[1].buffer.to_vec(1_024, 2_000), [0; 2_000]);
    assert_eq!(p.ends[1].state(), QpState::Err);
}

/// As sent by a sender with its own way of numbering packets.
fn renumbered(frame: &Frame, ip_id: u16) -> Frame {
    let mut frame = frame.clone();
    frame.meta.ip_id = IpId::Known(ip_id);
    let mut foreign = forge(&frame, |_| {});
    foreign.meta.ip_id = IpId::Guess(0);
    foreign
}

#[test]
fn frames_in_a_foreign_peers_name_do_not_shut_it_out() {
    let mut p = Pair::of(QpType::Uc);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    let frame = p.take(0).remove(0);
    let forged = renumbered(&frame, 3);
    for _ in 0..100_000 {
        p.deliver(&forged);
    }
    let mut lost = 0;
    while p.ends[1].nic.counters().icrc_solved == 0 {
        p.deliver(&renumbered(&frame, 40_000 + lost));
        lost += 1;
        assert!(lost < 5, "the peer is not heard any more");
    }
    assert!(lost > 1, "one such frame may be corrupt");
}

#[test]
fn what_is_known_of_one_source_of_datagrams_says_nothing_of_another() {
    let mut p = Pair::of(QpType::Ud);
    for wr_id in 0..2 {
        p.recv(1, wr_id, &[p.ends[1].sge(0, 100)]);
    }
    let dest = UdDest { av: AddressVector::new(addr(1)), qpn: p.ends[1].qpn, qkey: 0x11 };
    let sges = [p.ends[0].sge(0, 8)];
    let end = &mut p.ends[0];
    let wr = SendWr { ud: Some(dest), ..SendWr::new(1, SendOp::Send, &sges) };
    end.nic.post_send(p.now, end.qpn, &wr).unwrap();
    let frame = p.take(0).remove(0);
    for _ in 0..1_000 {
        p.deliver(&frame);
    }
    assert_eq!(p.ends[1].nic.counters().icrc_solved, 0);
    let mut other = frame.clone();
    other.meta.src = addr(7);
    p.deliver(&renumbered(&other, 40_000));
    assert_eq!(p.ends[1].nic.counters().icrc_solved, 1);
}
