//! Idle connections whose peer lives, dies, or moves.

use bowline_wire::Syndrome;

use super::*;

const INTERVAL_NS: u64 = 1_000_000_000;
/// What [`connect_to`] allows: each try waits 4.2 ms, less than its share of the interval.
const BOUND_NS: u64 = 3 * INTERVAL_NS;

fn watched(mut pair: Pair) -> Pair {
    pair.watch(0);
    pair
}

impl Pair {
    fn watch(&mut self, i: usize) {
        let end = &mut self.ends[i];
        end.nic.watch_peer(self.now, end.qpn, Some(INTERVAL_NS)).unwrap();
    }

    /// Lets time pass. What the ends send arrives, unless the second is dead.
    fn let_pass(&mut self, ns: u64, alive: bool) -> Vec<Frame> {
        let end = self.now.plus_nanos(ns);
        let mut seen = Vec::new();
        loop {
            let frames: Vec<Frame> = (0..2).flat_map(|i| self.take(i)).collect();
            if alive {
                self.deliver_all(&frames);
            }
            let next = self.ends.iter().filter_map(|e| e.nic.poll_timeout()).min();
            let rests = frames.is_empty();
            seen.extend(frames);
            match next {
                _ if !rests => {}
                Some(at) if at <= end => assert!(self.fire_timer()),
                _ => break,
            }
        }
        self.now = end;
        seen
    }

    fn probes(&self, i: usize) -> u64 {
        self.ends[i].nic.counters().keepalive_probes
    }
}

#[test]
fn a_peer_that_answers_stays_and_notices_nothing() {
    let mut p = watched(Pair::rc());
    let sge = p.ends[1].sge(0, 16);
    p.recv(1, 7, &[sge]);
    p.let_pass(20 * INTERVAL_NS, true);
    assert!((5..=20).contains(&p.probes(0)), "{}", p.probes(0));
    assert_eq!(p.probes(1), 0, "nobody asked the other to watch");
    for end in &mut p.ends {
        assert_eq!((end.statuses(), end.nic.poll_event()), (vec![], None));
        assert_eq!(end.state(), QpState::Rts);
    }
    // The numbering continues where it was.
    let sge = p.ends[0].sge(0, 16);
    p.post(0, 1, SendOp::Send, &[sge]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.ends[1].statuses(), [(7, WcStatus::Success)]);
    assert_eq!(p.ends[1].nic.counters().tx_nak_sequence, 0);
}

#[test]
fn what_was_sent_last_does_not_matter() {
    let mut p = watched(Pair::rc());
    p.watch(1);
    for round in 0..6 {
        let (sge, remote) = (p.ends[0].sge(0, 4000), p.ends[1].remote(0));
        let op = match round % 3 {
            0 => SendOp::Read(remote),
            1 => SendOp::Write(remote),
            _ => SendOp::FetchAdd { remote, add: 1 },
        };
        let sge = if round % 3 == 2 { p.ends[0].sge(0, 8) } else { sge };
        p.post(0, round, op, &[sge]);
        p.let_pass(5 * INTERVAL_NS, true);
        assert_eq!(p.ends[0].statuses(), [(round, WcStatus::Success)]);
    }
    assert!(p.probes(0) > 5 && p.probes(1) > 5);
    assert!(p.ends.iter().all(|end| end.state() == QpState::Rts));
}

#[test]
fn a_probe_needs_no_right_to_write() {
    let mut p = watched(Pair::rc());
    let (nic, qpn) = (&mut p.ends[1].nic, p.ends[1].qpn);
    let nothing = QpAttr { access: Some(Access::empty()), ..QpAttr::default() };
    nic.modify_qp(p.now, qpn, &nothing).unwrap();
    p.let_pass(10 * INTERVAL_NS, true);
    assert!(p.probes(0) > 2);
    assert!(p.ends.iter().all(|end| end.state() == QpState::Rts));
}

#[test]
fn a_dead_peer_is_reported_within_the_bound() {
    let mut p = watched(Pair::rc());
    p.let_pass(INTERVAL_NS / 2, true);
    let sge = p.ends[0].sge(0, 16);
    p.recv(0, 3, &[sge]);
    let sent = p.let_pass(BOUND_NS, false);
    let retries = 3;
    assert_eq!(sent.len(), 1 + retries, "a try, and as many retries as a request has");
    let (qpn, end) = (p.ends[0].qpn, &mut p.ends[0]);
    assert_eq!(end.state(), QpState::Err);
    assert_eq!(end.nic.poll_event(), Some(Event::PeerLost(qpn)));
    assert_eq!(end.nic.poll_event(), None);
    assert_eq!(end.statuses(), [(3, WcStatus::WrFlushErr)], "nothing but the receive");
    assert_eq!(end.nic.counters().keepalive_failures, 1);
    assert_eq!(p.let_pass(BOUND_NS, false).len(), 0);
    assert_eq!(p.ends[0].nic.poll_timeout(), None, "nobody is watched any more");
}

#[test]
fn a_peer_that_dies_after_many_answers_is_found() {
    let mut p = watched(Pair::rc());
    p.let_pass(7 * INTERVAL_NS + 1, true);
    p.let_pass(BOUND_NS, false);
    assert_eq!(p.ends[0].state(), QpState::Err);
}

#[test]
fn a_few_lost_answers_are_no_death() {
    let mut p = watched(Pair::rc());
    p.let_pass(2 * INTERVAL_NS + INTERVAL_NS / 2, false);
    assert!(p.probes(0) >= 2);
    p.let_pass(10 * INTERVAL_NS, true);
    assert_eq!(p.ends[0].state(), QpState::Rts);
}

#[test]
fn a_request_without_an_answer_says_so_too() {
    let mut p = watched(Pair::rc());
    let sge = p.ends[0].sge(0, 16);
    p.post(0, 5, SendOp::Send, &[sge]);
    p.let_pass(INTERVAL_NS / 2, false);
    let (qpn, end) = (p.ends[0].qpn, &mut p.ends[0]);
    assert_eq!(end.statuses(), [(5, WcStatus::RetryExcErr)]);
    assert_eq!(end.nic.poll_event(), Some(Event::PeerLost(qpn)));
}

#[test]
fn a_connection_that_waits_for_ever_does_so_here_too() {
    let mut p = watched(Pair::rc());
    let qpn = p.ends[0].qpn;
    p.ends[0].nic.qp_mut(qpn).unwrap().core.attrs.timeout = 0;
    p.let_pass(10 * BOUND_NS, false);
    assert_eq!((p.ends[0].state(), p.probes(0)), (QpState::Rts, 0));
}

#[test]
fn an_answer_with_another_psn_counts_and_a_forged_one_does_no_more() {
    let mut p = watched(Pair::rc());
    for round in 0..4 {
        let asked = p.let_pass(INTERVAL_NS, false);
        for probe in asked.iter().filter(|frame| frame.opcode() == Opcode::RC_WRITE_ONLY) {
            p.deliver(probe);
        }
        // This is how rxe answers after nothing but READs.
        for answer in p.take(1) {
            let odd = forge(&answer, |bytes| bytes[9..12].copy_from_slice(&[0xff; 3]));
            p.deliver(&odd);
            p.deliver(&odd);
        }
        assert_eq!(p.ends[0].state(), QpState::Rts, "round {round}");
    }
    let acks = p.ends[0].nic.counters();
    assert!(acks.rx_acks > 0 && acks.drop_stale >= acks.rx_acks, "the second is stale");
    assert_eq!(p.ends[0].statuses(), []);
}

#[test]
fn a_negative_answer_is_none() {
    let mut p = watched(Pair::rc());
    let asked = p.let_pass(2 * INTERVAL_NS, false);
    p.deliver(&asked[0]);
    let answer = p.take(1).remove(0);
    let nak = forge(&answer, |bytes| bytes[12] = 0b0110_0000);
    assert!(matches!(parse(&nak).aeth().unwrap().syndrome, Syndrome::Nak(_)));
    for _ in 0..100 {
        p.deliver(&nak);
    }
    p.let_pass(BOUND_NS, false);
    assert_eq!(p.ends[0].state(), QpState::Err);
}

#[test]
fn who_is_not_watched_has_no_timer() {
    let mut p = Pair::rc();
    assert_eq!(p.ends[0].nic.poll_timeout(), None);
    p.watch(0);
    let (nic, qpn) = (&mut p.ends[0].nic, p.ends[0].qpn);
    nic.watch_peer(p.now, qpn, None).unwrap();
    assert_eq!(p.let_pass(10 * BOUND_NS, false).len(), 0);
    assert_eq!(p.ends[0].state(), QpState::Rts);
    let (nic, qpn) = (&mut p.ends[0].nic, p.ends[0].qpn);
    assert!(nic.watch_peer(p.now, qpn, Some(0)).is_err());
    assert!(nic.watch_peer(p.now, Qpn::new(0x77), Some(1)).is_err());
    let mut p = Pair::of(QpType::Uc);
    let (nic, qpn) = (&mut p.ends[0].nic, p.ends[0].qpn);
    assert!(nic.watch_peer(p.now, qpn, Some(INTERVAL_NS)).is_err());
}
