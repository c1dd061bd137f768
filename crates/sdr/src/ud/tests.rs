use std::collections::VecDeque;

use bowline_nic::{AddressVector, Nic, QpAttr, QpInit, QpState, QpType};

use super::*;
use crate::testing::{End, Frame, SdrPair, addr, small};
use crate::{RecvHandle, Transport};

/// A datagram of the first `len` bytes of an end's buffer, on its way to end 1.
fn datagram(end: &mut End, now: Time, qpn: Qpn, dest: UdDest, op: SendOp, len: u32) -> Frame {
    let sge = [Sge::new(end.key, 0, len)];
    let wr = SendWr { ud: Some(dest), ..SendWr::new(0, op, &sge) };
    end.nic.post_send(now, qpn, &wr).unwrap();
    let mut frames = VecDeque::new();
    end.transmit(now, 1, &mut frames);
    frames.pop_front().unwrap()
}

/// Where end 1's QP of the first channel and a generation listens.
fn dest(pair: &SdrPair, generation: usize) -> UdDest {
    let info = pair.qps[1].info();
    let av = AddressVector::new(addr(1));
    UdDest { av, qpn: info.qpns[generation], qkey: info.qkey.unwrap() }
}

/// Another UD QP.
fn other_qp(end: &mut End, now: Time) -> Qpn {
    let cq = end.nic.create_cq(16).unwrap();
    let qpn = end.nic.create_qp(&QpInit::new(QpType::Ud, end.pd, cq)).unwrap();
    end.nic.activate(now, qpn, 1).unwrap();
    qpn
}

fn imm(id: u32, packet: u32) -> SendOp {
    SendOp::SendImm(ImmLayout::STANDARD.series(id, packet, 0).imm(0))
}

fn recv(pair: &mut SdrPair, at: u64, len: u64) -> RecvHandle {
    let (now, buffer) = (pair.now, pair.ends[1].at(at));
    pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, len).unwrap()
}

#[test]
fn nobody_but_the_peer_is_heard() {
    let mut pair = SdrPair::new(&small(Transport::Ud));
    let handle = recv(&mut pair, 0, 256);
    pair.settle();
    let (now, to, ours) = (pair.now, dest(&pair, 0), pair.qps[0].info());
    pair.ends[0].buffer.fill(0, 256, 0x55);

    // Another QP of the peer's host, which has learned the key.
    let other = other_qp(&mut pair.ends[0], now);
    let frame = datagram(&mut pair.ends[0], now, other, to, imm(0, 0), 256);
    pair.deliver(&frame);
    assert_eq!(pair.qps[1].landing_stats().refused, 1);

    // Another host, with a QP of the same number.
    let mut host = End::new(2);
    while other_qp(&mut host, now) != ours.qpns[0] {}
    let mut frame = datagram(&mut host, now, ours.qpns[0], to, imm(0, 0), 256);
    frame.meta.src = addr(2);
    pair.deliver(&frame);
    assert_eq!(pair.qps[1].landing_stats().refused, 2);

    // A sender that does not know the key.
    let wrong = UdDest { qkey: to.qkey ^ 1, ..to };
    let frame = datagram(&mut pair.ends[0], now, ours.qpns[0], wrong, imm(0, 0), 256);
    pair.deliver(&frame);
    assert_eq!(pair.ends[1].nic.counters().drop_qkey, 1);

    assert_eq!(pair.qps[1].recv_bitmap(handle).unwrap().count(), 0);
    assert_eq!(pair.ends[1].buffer.to_vec(0, 256), [0; 256]);
    assert_eq!(pair.qps[1].landing_stats().packets, 0);

    // And the peer.
    let frame = datagram(&mut pair.ends[0], now, ours.qpns[0], to, imm(0, 0), 256);
    pair.deliver(&frame);
    assert!(pair.qps[1].recv_bitmap(handle).unwrap().is_complete());
    assert_eq!(pair.ends[1].buffer.to_vec(0, 256), [0x55; 256]);
}

#[test]
fn nobody_but_the_peer_controls() {
    let mut pair = SdrPair::new(&small(Transport::Ud));
    let (now, ours) = (pair.now, pair.qps[0].info());
    let to = UdDest { qpn: pair.qps[1].info().control, ..dest(&pair, 0) };
    // A message for the user, in version 3 of the channel's protocol, with the token.
    let len = (MAX_MESSAGE - crate::MAX_CONTROL + 12) as u32;
    let token = pair.qps[1].info().token.to_bytes();
    pair.ends[0].buffer.fill(0, len as usize, 0);
    pair.ends[0].buffer.write_at(0, &[3, 2]);
    pair.ends[0].buffer.write_at(8, &token[..8]);
    pair.ends[0].buffer.write_at(len as usize - 8, &token[8..]);
    let other = other_qp(&mut pair.ends[0], now);
    for (qpn, heard) in [(other, false), (ours.qpns[0], false), (ours.control, true)] {
        let frame = datagram(&mut pair.ends[0], now, qpn, to, SendOp::Send, len);
        pair.deliver(&frame);
        assert_eq!(pair.qps[1].next_control(), heard.then(|| vec![0; 12]), "from {qpn}");
    }
    // Datagrams that are too long do not use up the receives.
    for _ in 0..1_000 {
        let frame = datagram(&mut pair.ends[0], now, ours.control, to, SendOp::Send, 2_000);
        pair.deliver(&frame);
    }
    let frame = datagram(&mut pair.ends[0], now, ours.control, to, SendOp::Send, len);
    pair.deliver(&frame);
    assert!(pair.qps[1].next_control().is_some());
}

#[test]
fn what_has_no_place_touches_nothing() {
    let mut pair = SdrPair::new(&small(Transport::Ud));
    pair.ends[0].buffer.fill(0, 1_000, 0x55);
    pair.ends[1].buffer.fill(0, 20_000, 0xaa);
    let handle = recv(&mut pair, 5_000, 1_000);
    pair.settle();
    let (now, ours) = (pair.now, pair.qps[0].info());
    // Generation, ID, packet, bytes: across the end, after it, far after it, of no message, of
    // another generation.
    let cases = [
        (0, 0, 3, 256),
        (0, 0, 4, 1),
        (0, 0, (1 << 18) - 1, 256),
        (0, 1, 0, 256),
        (0, 1, 0, 0),
        (1, 0, 0, 256),
    ];
    for (i, (generation, id, packet, len)) in cases.into_iter().enumerate() {
        let (qpn, to) = (ours.qpns[generation], dest(&pair, generation));
        let frame = datagram(&mut pair.ends[0], now, qpn, to, imm(id, packet), len);
        pair.deliver(&frame);
        assert_eq!(pair.qps[1].landing_stats().late, 1 + i as u64, "{:?}", cases[i]);
    }
    // Longer than a packet can be.
    let to = dest(&pair, 0);
    let frame = datagram(&mut pair.ends[0], now, ours.qpns[0], to, imm(0, 0), 257);
    pair.deliver(&frame);
    assert_eq!(pair.qps[1].landing_stats().refused, 1);
    assert_eq!(pair.qps[1].recv_bitmap(handle).unwrap().count(), 0);
    assert_eq!(pair.ends[1].buffer.to_vec(0, 20_000), vec![0xaa; 20_000]);
    // A packet that arrives while its message is open, but is handled when it is over.
    let frame = datagram(&mut pair.ends[0], now, ours.qpns[0], to, imm(0, 0), 256);
    let end = &mut pair.ends[1];
    end.nic.handle_frame(now, &frame.meta, &frame.bytes);
    pair.qps[1].recv_complete(&mut end.nic, handle).unwrap();
    pair.qps[1].drive(&mut end.nic, now);
    assert_eq!(pair.qps[1].landing_stats().late, 7);
    assert_eq!(pair.ends[1].buffer.to_vec(0, 20_000), vec![0xaa; 20_000]);
}

#[test]
fn memory_must_be_the_receivers() {
    let mut pair = SdrPair::new(&small(Transport::Ud));
    let (now, end) = (pair.now, &mut pair.ends[1]);
    let size = crate::testing::BUFFER as u64;
    let foreign = Source { key: MrKey(end.key.0 ^ 1), addr: 0 };
    for buffer in [foreign, end.at(size - 255), end.at(u64::MAX)] {
        let posted = pair.qps[1].recv_post(&mut end.nic, now, buffer, 256);
        assert!(matches!(posted, Err(SdrError::Nic(_))), "{posted:?}");
    }
    let handle = recv(&mut pair, size - 256, 256);
    pair.settle();
    // Revoked memory is no longer written.
    let key = pair.ends[1].key;
    pair.ends[1].nic.deregister(key).unwrap();
    let source = pair.ends[0].at(0);
    pair.qps[0].send_post(source, 256, None).unwrap();
    pair.settle();
    assert_eq!(pair.qps[1].recv_bitmap(handle).unwrap().count(), 0);
    assert_eq!(pair.qps[1].landing_stats().late, 1);
}

#[test]
fn a_burst_beyond_the_receives_is_lost_and_the_next_is_not() {
    let receives = End::new(0).nic.datagram_receives();
    let packets = receives + 100;
    let max_message = u64::from(packets) * 256;
    let mut pair = SdrPair::new(&crate::SdrConfig { max_message, ..small(Transport::Ud) });
    let handle = recv(&mut pair, 0, max_message);
    for frame in pair.take(1) {
        pair.deliver(&frame);
    }
    let (now, source) = (pair.now, pair.ends[0].at(0));
    pair.qps[0].send_post(source, max_message, None).unwrap();
    let frames: Vec<Frame> = pair.take(0).into_iter().filter(Frame::is_data).collect();
    assert_eq!(frames.len(), packets as usize);
    for expected in [receives, packets] {
        for frame in &frames {
            pair.ends[1].nic.handle_frame(now, &frame.meta, &frame.bytes);
            if expected == packets {
                pair.qps[1].drive(&mut pair.ends[1].nic, now);
            }
        }
        pair.qps[1].drive(&mut pair.ends[1].nic, now);
        let stats = pair.qps[1].landing_stats();
        assert_eq!(stats.packets - stats.duplicates, u64::from(expected));
    }
    assert!(pair.qps[1].recv_bitmap(handle).unwrap().is_complete());
}

#[test]
fn qps_in_error_are_left_alone() {
    for transport in [Transport::Uc, Transport::Ud] {
        let mut pair = SdrPair::new(&small(transport));
        let (now, info) = (pair.now, pair.qps[1].info());
        let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        for qpn in info.qpns.iter().chain([&info.control]) {
            pair.ends[1].nic.modify_qp(now, *qpn, &error).unwrap();
        }
        recv(&mut pair, 0, 256);
        let source = pair.ends[0].at(0);
        pair.qps[0].send_post(source, 256, None).unwrap();
        pair.settle();
        assert_eq!(pair.qps[1].landing_stats().packets, 0);
    }
}

#[test]
fn q_keys_differ_and_nothing_is_left_behind() {
    let mut end = End::new(0);
    let config = small(Transport::Ud);
    let mut keys = Vec::new();
    for _ in 0..20 {
        let qp = crate::SdrQp::new(&mut end.nic, end.pd, &config).unwrap();
        keys.extend(qp.info().qkey);
        qp.destroy(&mut end.nic);
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 20);
    assert!(keys.iter().all(|key| key & PRIVILEGED == 0));
    // A domain goes only when nothing is in it.
    end.nic.deregister(end.key).unwrap();
    end.nic.dealloc_pd(end.pd).unwrap();
}

#[test]
fn packets_must_fit_the_port() {
    let config = bowline_nic::NicConfig::new(addr(0), [0; 32]);
    for (max_mtu, mtu) in [(512, 256), (1024, 2048)] {
        let max_mtu = bowline_nic::Mtu::from_bytes(max_mtu).unwrap();
        let mut nic = Nic::new(bowline_nic::NicConfig { max_mtu, ..config.clone() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let mtu = bowline_nic::Mtu::from_bytes(mtu).unwrap();
        let config = crate::SdrConfig { mtu, chunk_bytes: 4096, ..small(Transport::Ud) };
        let error = crate::SdrQp::new(&mut nic, pd, &config).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("MTU: "), "{error}");
    }
}
