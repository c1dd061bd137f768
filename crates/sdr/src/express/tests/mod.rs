//! Two ends on soft NICs, connected by a wire that the test controls.

mod hostile;
mod storm;

use std::collections::VecDeque;

use bowline_nic::{AddressVector, Completion, EndMark, Mtu, Time, WcOpcode, WcStatus, XpOptions};

use super::*;
use crate::Source;
use crate::testing::{End, Frame, addr};

const MTU: u32 = 256;

struct Pair {
    ends: [End; 2],
    objects: Vec<NicObjects>,
    qps: Vec<ExpressQp<Source>>,
    now: Time,
}

impl Pair {
    fn new(options: XpOptions) -> Pair {
        let mut ends = [End::new(0), End::new(1)];
        let mut objects: Vec<_> =
            ends.iter_mut().map(|end| NicObjects::new(&mut end.nic, end.pd).unwrap()).collect();
        let infos: Vec<_> = objects.iter().map(NicObjects::info).collect();
        let now = Time::from_micros(1);
        for i in 0..2 {
            let av = AddressVector::new(addr(1 - i));
            objects[i].connect(&mut ends[i].nic, now, av, Mtu::B256, &infos[1 - i]).unwrap();
        }
        let qps = (0..2).map(|_| ExpressQp::new(Mtu::B256, options).unwrap()).collect();
        Pair { ends, objects, qps, now }
    }

    fn drive(&mut self, i: usize) {
        let (nic, now) = (&mut self.ends[i].nic, self.now);
        nic.handle_timeout(now);
        let mut carrier = OnNic { nic, objects: &mut self.objects[i], now };
        self.qps[i].drive(now, &mut carrier);
    }

    /// Drives an end and takes what it sends.
    fn take(&mut self, i: usize) -> VecDeque<Frame> {
        let mut frames = VecDeque::new();
        loop {
            let before = frames.len();
            self.drive(i);
            self.ends[i].transmit(self.now, 1 - i, &mut frames);
            if frames.len() == before {
                return frames;
            }
        }
    }

    fn deliver(&mut self, frame: &Frame) {
        let nic = &mut self.ends[frame.to].nic;
        nic.handle_frame(self.now, &frame.meta, &frame.bytes);
        self.drive(frame.to);
    }

    /// Delivers everything except fragments, which it returns.
    fn settle_control(&mut self) -> Vec<Frame> {
        let mut data = Vec::new();
        loop {
            let frames: Vec<Frame> = (0..2).flat_map(|i| self.take(i)).collect();
            if frames.is_empty() {
                return data;
            }
            for frame in frames {
                if frame.is_data() { data.push(frame) } else { self.deliver(&frame) }
            }
        }
    }

    /// Delivers everything.
    fn settle(&mut self) {
        loop {
            let data = self.settle_control();
            if data.is_empty() {
                return;
            }
            for frame in data {
                self.deliver(&frame);
            }
        }
    }

    fn pass(&mut self, nanos: u64) {
        self.now = self.now.plus_nanos(nanos);
    }

    /// End 1 receives `len` bytes at `at`, with a timeout of `nanos`.
    fn recv(&mut self, wr_id: u64, at: u64, len: u32, nanos: u64) {
        let place = self.ends[1].at(at);
        self.ends[1].buffer.write_at(at as usize, &vec![0xee; len as usize]);
        let deadline = self.now.plus_nanos(nanos);
        self.qps[1].post_recv(&ExpressRecv { wr_id, place, len, deadline }).unwrap();
    }

    /// End 0 sends `len` bytes.
    fn send(&mut self, wr_id: u64, len: u32, target: Target) {
        let place = self.ends[0].at(0);
        self.ends[0].buffer.write_at(0, &pattern(len));
        let deadline = self.now.plus_nanos(1_000_000);
        self.qps[0].post_send(&ExpressSend { wr_id, place, len, target, deadline }).unwrap();
    }

    fn completion(&mut self, i: usize) -> Completion {
        let completion = self.qps[i].poll().expect("a completion");
        assert_eq!(completion.status, WcStatus::Success);
        completion
    }

    fn received(&self, at: usize, len: usize) -> Vec<u8> {
        self.ends[1].buffer.to_vec(at, len)
    }
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8)) as u8 | 1).collect()
}

fn logging() -> XpOptions {
    XpOptions { loss_log: 8, ..XpOptions::default() }
}

#[test]
fn messages_arrive_whole() {
    let mut pair = Pair::new(logging());
    for (n, len) in [0, 1, 255, 256, 257, 10_000].into_iter().enumerate() {
        for target in [Target::Send(None), Target::Send(Some(0xdead_beef)), Target::WriteImm(3, 7)]
        {
            let wr_id = n as u64;
            pair.recv(wr_id, 4096, len + 3, 1_000_000);
            pair.send(wr_id, len, target);
            pair.settle();
            let sent = pair.completion(0);
            assert_eq!((sent.wr_id, sent.byte_len, sent.end), (wr_id, len, EndMark::Whole));
            let got = pair.completion(1);
            assert_eq!((got.wr_id, got.byte_len, got.end), (wr_id, len, EndMark::Whole));
            let (opcode, imm, offset) = match target {
                Target::Send(imm) => (WcOpcode::Recv, imm, 0),
                Target::WriteImm(offset, imm) => (WcOpcode::RecvWriteImm, Some(imm), offset),
            };
            assert_eq!((got.opcode, got.imm), (opcode, imm));
            assert_eq!(pair.received(4096 + offset as usize, len as usize), pattern(len));
            assert_eq!(pair.qps[1].take_loss(), None);
        }
    }
    assert_eq!(pair.qps[1].counters(), ExpressCounters::default());
}

#[test]
fn nothing_is_sent_before_its_receive_is_granted() {
    let mut pair = Pair::new(logging());
    pair.send(1, 1000, Target::Send(None));
    assert!(pair.take(0).is_empty());
    pair.recv(2, 0, 1000, 1_000_000);
    pair.settle();
    assert_eq!(pair.completion(1).end, EndMark::Whole);
}

#[test]
fn a_request_that_gets_no_grant_ends_at_its_deadline_and_keeps_its_number() {
    let mut pair = Pair::new(logging());
    pair.send(1, 1000, Target::Send(None));
    assert_eq!(pair.qps[0].poll_timeout(), Some(pair.now.plus_nanos(1_000_000)));
    pair.pass(999_999);
    pair.drive(0);
    assert_eq!(pair.qps[0].poll(), None);
    pair.pass(1);
    pair.drive(0);
    let sent = pair.completion(0);
    assert_eq!((sent.wr_id, sent.byte_len, sent.end), (1, 0, EndMark::Deadline));
    // It keeps its receive: the next message is for the next one.
    pair.recv(5, 0, 1000, 5_000_000);
    pair.recv(6, 2000, 1000, 5_000_000);
    pair.send(2, 1000, Target::Send(None));
    pair.settle();
    let got = pair.completion(1);
    assert_eq!((got.wr_id, got.byte_len, got.end), (5, 0, EndMark::Preempted));
    let got = pair.completion(1);
    assert_eq!((got.wr_id, got.byte_len, got.end), (6, 1000, EndMark::Whole));
}

#[test]
fn late_packets_touch_nothing_after_the_deadline() {
    let mut pair = Pair::new(logging());
    pair.recv(1, 0, 1000, 50_000);
    pair.send(1, 1000, Target::Send(None));
    let data = pair.settle_control();
    assert_eq!(data.len(), 4);
    pair.deliver(&data[1]);
    pair.pass(50_000);
    pair.drive(1);
    let got = pair.completion(1);
    assert_eq!((got.byte_len, got.end), (MTU, EndMark::Deadline));
    let loss = pair.qps[1].take_loss().unwrap();
    assert_eq!((loss.message_len, loss.missing), (None, vec![0..MTU, 2 * MTU..1000]));
    // The buffer is the application's again, and serves the next message.
    pair.ends[1].buffer.write_at(0, &[0x55; 1000]);
    let violations = pair.ends[1].nic.counters().access_violations;
    for frame in &data {
        pair.deliver(frame);
    }
    assert_eq!(pair.received(0, 1000), [0x55; 1000]);
    assert_eq!(pair.ends[1].nic.counters().access_violations, violations + 4);
    pair.recv(2, 0, 1000, 1_000_000);
    for frame in &data {
        pair.deliver(frame);
    }
    assert_eq!(pair.received(0, 1000), [0xee; 1000]);
    pair.send(2, 500, Target::Send(None));
    pair.settle();
    assert_eq!(pair.completion(1).byte_len, 500);
}

#[test]
fn the_last_fragment_ends_a_message_at_once() {
    let mut pair = Pair::new(logging());
    pair.recv(1, 0, 2000, 1_000_000);
    pair.send(1, 1000, Target::WriteImm(0, 0x1234_5678));
    let data = pair.settle_control();
    // The immediate's halves, three fragments, the halves again, the last fragment.
    assert_eq!(data.len(), 8);
    for k in [1, 3, 5, 7, 2] {
        pair.deliver(&data[k]);
    }
    let got = pair.completion(1);
    assert_eq!((got.byte_len, got.end, got.imm), (MTU + 232, EndMark::Last, Some(0x1234_5678)));
    let loss = pair.qps[1].take_loss().unwrap();
    assert_eq!((loss.message_len, loss.missing), (Some(1000), vec![0..MTU, 2 * MTU..3 * MTU]));
    assert_eq!(pair.received(0, 256), [0xee; 256]);
}

#[test]
fn a_grace_lets_overtaken_fragments_in() {
    for lost in [false, true] {
        let mut pair = Pair::new(XpOptions { grace_ns: 10_000, ..logging() });
        pair.recv(1, 0, 2000, 1_000_000);
        pair.send(1, 600, Target::Send(None));
        let data = pair.settle_control();
        pair.deliver(&data[2]);
        pair.deliver(&data[0]);
        assert_eq!(pair.qps[1].poll(), None);
        assert_eq!(pair.qps[1].poll_timeout(), Some(pair.now.plus_nanos(10_000)));
        if lost {
            pair.pass(10_000);
            pair.drive(1);
        } else {
            pair.deliver(&data[1]);
        }
        let end = if lost { EndMark::Last } else { EndMark::Whole };
        assert_eq!(pair.completion(1).end, end);
    }
}

#[test]
fn a_message_lost_as_a_whole_ends_its_receive_and_shifts_no_other() {
    for window in [1, 2] {
        let mut pair = Pair::new(XpOptions { window, ..logging() });
        for n in 0..4 {
            pair.recv(n, n * 1000, 1000, 1_000_000);
            pair.send(n, 700, Target::Send(None));
        }
        let data = pair.settle_control();
        assert_eq!(data.len(), 12);
        for frame in &data[6..] {
            pair.deliver(frame);
        }
        let ended: Vec<_> = std::iter::from_fn(|| pair.qps[1].poll())
            .map(|got| (got.wr_id, got.byte_len, got.end))
            .collect();
        let whole = |wr_id| (wr_id, 700, EndMark::Whole);
        let lost = |wr_id| (wr_id, 0, EndMark::Preempted);
        let expected = match window {
            1 => vec![lost(0), lost(1), whole(2), whole(3)],
            _ => vec![lost(0), whole(2), lost(1), whole(3)],
        };
        assert_eq!(ended, expected, "window {window}");
    }
}

#[test]
fn duplicates_count_once() {
    let mut pair = Pair::new(logging());
    pair.recv(1, 0, 1000, 1_000_000);
    pair.send(1, 1000, Target::Send(None));
    let data = pair.settle_control();
    for k in [0, 0, 1, 2, 1, 3] {
        pair.deliver(&data[k]);
    }
    assert_eq!(pair.completion(1).byte_len, 1000);
    assert_eq!(pair.qps[1].counters().duplicates, 2);
}

#[test]
fn a_message_longer_than_its_receive_fails_at_its_sender() {
    let mut pair = Pair::new(logging());
    pair.recv(1, 0, 100, 1_000_000);
    pair.recv(2, 200, 100, 1_000_000);
    pair.send(1, 101, Target::Send(None));
    pair.send(2, 90, Target::WriteImm(10, 1));
    pair.settle();
    let sent = pair.qps[0].poll().unwrap();
    assert_eq!((sent.wr_id, sent.status), (1, WcStatus::LocLenErr));
    assert_eq!(pair.completion(0).wr_id, 2);
    let ended: Vec<_> = std::iter::from_fn(|| pair.qps[1].poll()).map(|got| got.byte_len).collect();
    assert_eq!(ended, [0, 90]);
    assert_eq!(pair.received(0, 100), [0xee; 100]);
}

#[test]
fn receives_that_end_before_their_keys_are_open_hold_up_nobody() {
    let mut pair = Pair::new(logging());
    let ended = u64::from(MAX_OPEN) + 8;
    for n in 0..ended {
        pair.recv(n, 0, 100, 1000);
    }
    pair.settle();
    pair.pass(1000);
    pair.drive(1);
    assert_eq!(std::iter::from_fn(|| pair.qps[1].poll()).count() as u64, ended);
    pair.recv(ended, 0, 100, 1_000_000);
    for n in 0..=ended {
        pair.send(n, 100, Target::Send(None));
    }
    pair.settle();
    let sent: Vec<_> = std::iter::from_fn(|| pair.qps[0].poll()).map(|wc| wc.end).collect();
    // Those whose keys were granted leave, and are discarded.
    let whole = [EndMark::Whole; MAX_OPEN as usize];
    assert_eq!(sent, [&whole[..], &[EndMark::Preempted; 8], &[EndMark::Whole]].concat());
    let got = pair.completion(1);
    assert_eq!((got.wr_id, got.byte_len, got.end), (ended, 100, EndMark::Whole));
}

#[test]
fn a_failed_carrier_flushes_everything() {
    let mut pair = Pair::new(logging());
    pair.recv(1, 0, 100, 1_000_000);
    pair.settle();
    let attr = bowline_nic::QpAttr {
        state: Some(bowline_nic::QpState::Err),
        ..bowline_nic::QpAttr::default()
    };
    let control = pair.objects[1].info().control;
    pair.ends[1].nic.modify_qp(pair.now, control, &attr).unwrap();
    pair.drive(1);
    assert!(pair.qps[1].has_failed());
    assert_eq!(pair.qps[1].poll().unwrap().status, WcStatus::WrFlushErr);
}

#[test]
fn numbers_wrap_and_keys_are_given_back() {
    let mut pair = Pair::new(logging());
    for n in 0..5000 {
        pair.recv(n, 0, 10, 1_000_000);
        pair.send(n, 10, Target::Send(None));
        pair.settle();
        let got = pair.completion(1);
        assert_eq!((got.wr_id, got.end), (n, EndMark::Whole));
        pair.completion(0);
    }
    assert_eq!(pair.objects[1].keys_open(), 0);
}
