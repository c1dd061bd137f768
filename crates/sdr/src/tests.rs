//! Attacks by someone who knows addresses and QP numbers and forges packets, but has no secret.

use std::collections::VecDeque;

use bowline_nic::{
    AddressVector, Connect, Mtu, Payload, QpInit, QpType, Remote, SendOp, SendWr, Time,
};
use bowline_wire::Qpn;

use crate::testing::{End, Frame, SdrPair, addr, small};
use crate::{ReliableConfig, ReliableEvent, ReliableQp, SdrConfig, Transport, WriteOptions};

/// A host that sends packets under end 0's address, without its secrets.
struct Forger {
    end: End,
}

impl Forger {
    fn new() -> Forger {
        Forger { end: End::with_secrets(0, [0xee; 32]) }
    }

    /// A packet, or several, to a UC QP of end 1.
    fn forge(&mut self, now: Time, to: Qpn, op: SendOp, bytes: &[u8]) -> Vec<Frame> {
        let End { nic, pd, .. } = &mut self.end;
        let cq = nic.create_cq(16).unwrap();
        let init = QpInit { max_inline: 1_024, ..QpInit::new(QpType::Uc, *pd, cq) };
        let qpn = nic.create_qp(&init).unwrap();
        let path_mtu = Mtu::B256;
        nic.connect(now, qpn, &Connect { path_mtu, ..Connect::new(addr(1), to) }).unwrap();
        let wr = SendWr { payload: Payload::Inline(bytes), ..SendWr::new(1, op, &[]) };
        nic.post_send(now, qpn, &wr).unwrap();
        let mut frames = VecDeque::new();
        self.end.transmit(now, 1, &mut frames);
        assert!(!frames.is_empty());
        frames.into()
    }
}

/// A well-formed control message, except for the token, which the forger guesses.
fn control(kind: u8, posted: u64, retired: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, kind, 0, 0, 0, 0, 0, 0];
    bytes.extend([0x11; 8]);
    let words: [u64; 6] = [1, 1, 0, 0, posted, retired];
    words.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    bytes.extend(payload);
    bytes.extend([0x11; 8]);
    bytes
}

#[test]
fn an_empty_packet_without_the_root_key_marks_nothing() {
    let mut pair = SdrPair::new(&small(Transport::Uc));
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    let handle = pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, 256).unwrap();
    pair.settle();
    let to = pair.qps[1].info().qpns[0];
    // Packet 0 of message 0, for each key that an attacker would try first.
    for rkey in [0, 1, u32::MAX] {
        let op = SendOp::WriteImm(Remote { addr: 0, rkey }, 0);
        for frame in Forger::new().forge(now, to, op, &[]) {
            pair.deliver(&frame);
        }
    }
    assert_eq!(pair.qps[1].recv_bitmap(handle).unwrap().count(), 0);
    assert_eq!(pair.qps[1].landing_stats().packets, 0);
    assert_eq!(pair.ends[1].nic.counters().access_violations, 3);
}

#[test]
fn control_without_the_token_is_refused() {
    let mut pair = SdrPair::new(&small(Transport::Uc));
    let (now, to) = (pair.now, pair.qps[1].info().control);
    let source = pair.ends[1].at(0);
    let sent = pair.qps[1].send_post(source, 100, None).unwrap();
    let before = pair.qps[1].path();
    for payload in [&b""[..], b"abort", &[0; 900]] {
        for kind in 0..3 {
            let bytes = control(kind, 1_000, 1_000, payload);
            for frame in Forger::new().forge(now, to, SendOp::Send, &bytes) {
                pair.deliver(&frame);
            }
        }
    }
    assert_eq!(pair.qps[1].next_control(), None);
    assert_eq!(pair.qps[1].peer_retired(), 0, "the peer has retired nothing");
    assert!(!pair.qps[1].is_cleared(sent), "the peer has posted nothing");
    assert_eq!(pair.qps[1].path(), before, "nobody measured anything");
    assert_eq!(pair.qps[1].landing_stats().refused, 9);
    // The peer's messages are still accepted.
    pair.qps[0].send_control(&mut pair.ends[0].nic, now, b"hello");
    pair.settle();
    assert_eq!(pair.qps[1].next_control().as_deref(), Some(&b"hello"[..]));
}

/// Where a control message spans several packets, an attacker can forge the middle of a real one,
/// but not its end.
#[test]
fn the_rest_of_a_control_message_cannot_be_exchanged() {
    let mut pair = SdrPair::new(&small(Transport::Uc));
    let (now, to) = (pair.now, pair.qps[1].info().control);
    pair.qps[0].send_control(&mut pair.ends[0].nic, now, &[1; 900]);
    let truth: Vec<Frame> = pair.take(0).into();
    let lie = Forger::new().forge(now, to, SendOp::Send, &control(2, 0, 0, &[2; 900]));
    assert_eq!((truth.len(), lie.len()), (4, 4));
    for cut in 1..4 {
        // Packets of one up to some point, and of the other from there on, numbered as one message.
        for (first, rest) in [(&truth, &lie), (&lie, &truth)] {
            let psn = |frame: &Frame| frame.bytes[9..12].to_vec();
            for (i, frame) in first[..cut].iter().chain(&rest[cut..]).enumerate() {
                let mut frame = frame.clone();
                assert_eq!(psn(&truth[i])[2].wrapping_sub(psn(&truth[0])[2]), i as u8);
                renumber(&mut frame, &psn(&truth[i]));
                pair.deliver(&frame);
            }
        }
    }
    assert_eq!(pair.qps[1].next_control(), None);
    assert_eq!(pair.qps[1].landing_stats().refused, 6);
}

/// Gives a packet another PSN and the ICRC that goes with it.
fn renumber(frame: &mut Frame, psn: &[u8]) {
    let end = frame.bytes.len() - 4;
    frame.bytes[9..12].copy_from_slice(psn);
    let flow = bowline_wire::FlowKey {
        src: frame.meta.src,
        dst: frame.meta.dst,
        src_port: frame.meta.src_port,
        dst_port: 4791,
    };
    let icrc = bowline_wire::icrc_of(&flow, 0, &frame.bytes[..end]);
    frame.bytes[end..].copy_from_slice(&icrc.to_le_bytes());
}

#[test]
fn a_forged_finish_is_no_success() {
    let config = ReliableConfig {
        sdr: SdrConfig { mtu: Mtu::B256, chunk_bytes: 512, ..SdrConfig::default() },
        max_write: 64 << 10,
        ..ReliableConfig::default()
    };
    let (mut writer, mut silent) = (End::new(1), End::new(0));
    let mut qp = ReliableQp::new(&mut writer.nic, writer.pd, &config).unwrap();
    let peer = ReliableQp::new(&mut silent.nic, silent.pd, &config).unwrap();
    let mut now = Time::from_micros(1);
    let control_qpn = qp.info().parts()[0].control;
    qp.connect(&mut writer.nic, now, AddressVector::new(addr(0)), &peer.info()).unwrap();
    let source = writer.at(0);
    qp.write(&mut writer.nic, now, source, 1_000, WriteOptions::default()).unwrap();
    let mut forger = Forger::new();
    for _ in 0..62 {
        // All receives are posted; then the message has arrived, and so has every other.
        let mut finished = vec![3];
        [0_u64, 1_000, 0].iter().for_each(|word| finished.extend(word.to_be_bytes()));
        let lies = [control(0, 1_000, 0, &[]), control(2, 1_000, 1_000, &finished)];
        for bytes in lies {
            for frame in forger.forge(now, control_qpn, SendOp::Send, &bytes) {
                writer.nic.handle_frame(now, &frame.meta, &frame.bytes);
            }
            qp.drive(&mut writer.nic, now);
            let mut out = VecDeque::new();
            writer.transmit(now, 0, &mut out);
        }
        now = now.plus_nanos(1_000_000);
        let event: Option<ReliableEvent> = qp.poll_event();
        assert_eq!(event, None, "nobody has received it");
    }
}

/// The tests above are refused for lack of a secret, and for no other reason.
#[test]
fn whoever_knows_the_root_key_is_believed() {
    let mut pair = SdrPair::new(&small(Transport::Uc));
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    let handle = pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, 256).unwrap();
    pair.settle();
    let info = pair.qps[1].info();
    let remote = Remote { addr: 0, rkey: info.roots[0] };
    let frames = Forger::new().forge(now, info.qpns[0], SendOp::WriteImm(remote, 0), &[]);
    frames.iter().for_each(|frame| pair.deliver(frame));
    assert_eq!(pair.qps[1].recv_bitmap(handle).unwrap().count(), 1, "with the key it is believed");
}
