//! What rate controllers hear, and how the engine follows what they say.

use std::sync::Mutex;

use super::*;
use crate::rate::{
    Acked, ControlledConnection, ControllerFactory, Feedback, Lost, RateController, Sent,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Heard {
    Built(&'static str, Mtu),
    Sent(Sent),
    Acked(Acked),
    Lost(Lost),
    Marked(u64),
    Cnp,
    Credit(u64),
}

/// Records what it hears, and returns what the test sets.
#[derive(Clone, Debug, Default)]
struct Script {
    heard: Arc<Mutex<Vec<Heard>>>,
    rate: Arc<Mutex<Option<u64>>>,
    window: Option<u64>,
}

impl Script {
    fn note(&self, heard: Heard) {
        self.heard.lock().unwrap().push(heard);
    }

    /// Everything heard since the last call.
    fn heard(&self) -> Vec<Heard> {
        core::mem::take(&mut *self.heard.lock().unwrap())
    }

    fn factory(&self) -> Option<Arc<dyn ControllerFactory>> {
        Some(Arc::new(self.clone()))
    }

    fn control(&self, p: &mut Pair) {
        let (now, qpn) = (p.now, p.ends[0].qpn);
        p.ends[0].nic.set_rate_controller(now, qpn, self.factory()).unwrap();
        self.heard();
    }
}

impl ControllerFactory for Script {
    fn build(&self, _now: Time, connection: &ControlledConnection) -> Box<dyn RateController> {
        self.note(Heard::Built(connection.transport.name, connection.mtu));
        Box::new(self.clone())
    }
}

impl RateController for Script {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        *self.rate.lock().unwrap()
    }

    fn window_bytes(&self) -> Option<u64> {
        self.window
    }

    fn on_sent(&mut self, _now: Time, sent: &Sent) {
        self.note(Heard::Sent(*sent));
    }

    fn on_acked(&mut self, _now: Time, acked: &Acked) {
        self.note(Heard::Acked(*acked));
    }

    fn on_lost(&mut self, _now: Time, lost: &Lost) {
        self.note(Heard::Lost(*lost));
    }

    fn on_marked(&mut self, _now: Time, bytes: u64) {
        self.note(Heard::Marked(bytes));
    }

    fn on_cnp(&mut self, _now: Time) {
        self.note(Heard::Cnp);
    }

    fn on_credit(&mut self, _now: Time, bytes: u64) {
        self.note(Heard::Credit(bytes));
    }
}

#[test]
fn rc_tells_what_was_sent_acknowledged_and_lost() {
    let (mut p, script) = (Pair::rc(), Script::default());
    script.control(&mut p);
    let write = SendOp::Write(p.ends[1].remote(0));
    p.post(0, 1, write, &[p.ends[0].sge(0, 2_500)]);
    let mut frames = p.take(0);
    let sent = Sent {
        bytes: frames.iter().map(|f| f.bytes.len() as u64).sum(),
        in_flight_bytes: Some(3 * 1_024),
        app_limited: true,
    };
    assert_eq!(script.heard(), [Heard::Sent(sent)]);
    // The second packet is lost, so the round trip is that of a packet sent twice.
    p.now = p.now.plus_nanos(7_000);
    let last = frames.remove(2);
    p.deliver_all(&[frames.remove(0), last]);
    let answers = p.take(1);
    p.deliver_all(&answers);
    let bytes = 2 * 1_024;
    let acked = Acked {
        bytes: 1_024,
        rtt_ns: None,
        in_flight_bytes: 0,
        app_limited: false,
        arrival_ns: None,
    };
    let lost = Lost { bytes, timeout: false };
    assert_eq!(script.heard(), [Heard::Lost(lost), Heard::Acked(acked)]);
    let again = p.take(0);
    p.deliver_all(&again);
    let answers = p.take(1);
    p.deliver_all(&answers);
    let acked = Acked {
        bytes: 1_476,
        rtt_ns: None,
        in_flight_bytes: 0,
        app_limited: true,
        arrival_ns: None,
    };
    assert_eq!(script.heard()[1..], [Heard::Acked(acked)]);

    // A packet sent once is timed, and an unanswered one runs into the timer.
    p.post(0, 2, write, &[p.ends[0].sge(0, 64)]);
    let frames = p.take(0);
    p.now = p.now.plus_nanos(9_000);
    p.deliver_all(&frames);
    let answers = p.take(1);
    p.deliver_all(&answers);
    let acked = Acked {
        bytes: 64,
        rtt_ns: Some(9_000),
        in_flight_bytes: 0,
        app_limited: true,
        arrival_ns: None,
    };
    assert_eq!(script.heard()[1..], [Heard::Acked(acked)]);
    p.post(0, 3, write, &[p.ends[0].sge(0, 64)]);
    p.take(0);
    while p.ends[0].nic.counters().timeouts == 0 {
        assert!(p.fire_timer());
    }
    let lost = Lost { bytes: 1_024, timeout: true };
    assert_eq!(script.heard()[1..], [Heard::Lost(lost)]);
}

#[test]
fn marks_on_answers_are_told_and_so_are_cnps() {
    let (mut p, script) = (Pair::rc(), Script::default());
    script.control(&mut p);
    p.post(0, 1, SendOp::Read(p.ends[1].remote(0)), &[p.ends[0].sge(0, 1_000)]);
    let request = p.take(0);
    p.deliver_all(&request);
    let mut answer = p.take(1);
    answer[0].meta.tos |= crate::frame::ECN_CE;
    script.heard();
    p.deliver_all(&answer);
    let acked = Acked {
        bytes: 1_000,
        rtt_ns: Some(0),
        in_flight_bytes: 0,
        app_limited: true,
        arrival_ns: None,
    };
    assert_eq!(script.heard(), [Heard::Marked(1_000), Heard::Acked(acked)]);
    p.post(1, 1, SendOp::Write(p.ends[0].remote(0)), &[p.ends[1].sge(0, 8)]);
    let mut write = p.take(1);
    write.retain(|frame| frame.opcode() != Opcode::CNP);
    write[0].meta.tos |= crate::frame::ECN_CE;
    p.deliver_all(&write);
    let cnp: Vec<_> = p.take(0).into_iter().filter(|f| f.opcode() == Opcode::CNP).collect();
    assert_eq!(cnp.len(), 1);
    let mut back = forge(&cnp[0], |bytes| bytes[5..8].copy_from_slice(&[0, 0, 2]));
    back.to = 0;
    (back.meta.src, back.meta.dst) = (addr(1), addr(0));
    let back = forge(&back, |_| {});
    script.heard();
    p.deliver(&back);
    assert_eq!(script.heard(), [Heard::Cnp]);
}

#[test]
fn a_controllers_window_bounds_what_is_in_flight() {
    let (mut p, script) = (Pair::rc(), Script { window: Some(10_000), ..Script::default() });
    script.control(&mut p);
    p.fill(0, 0, 100_000);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 100_000)]);
    assert_eq!(p.take(0).len(), 9);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
    let most = script.heard().into_iter().filter_map(|heard| match heard {
        Heard::Sent(sent) => sent.in_flight_bytes,
        _ => None,
    });
    assert_eq!(most.max(), Some(9 * 1_024));
}

#[test]
fn a_rate_of_zero_holds_a_qp_until_something_is_said_that_changes_it() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut p, script) = (Pair::of(qp_type), Script::default());
        *script.rate.lock().unwrap() = Some(0);
        script.control(&mut p);
        p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 1_000)]);
        assert_eq!(p.take(0).len(), 0);
        assert_eq!(p.ends[0].nic.poll_timeout(), None, "there is nothing to wait for");
        *script.rate.lock().unwrap() = Some(8_000_000_000);
        let (now, qpn) = (p.now, p.ends[0].qpn);
        p.ends[0].nic.rate_feedback(now, qpn, &Feedback::Credit(4_096)).unwrap();
        assert_eq!(script.heard(), [Heard::Credit(4_096)]);
        p.exchange();
        assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn a_protocol_above_tells_what_the_transport_cannot_know() {
    let (mut p, script) = (Pair::of(QpType::Uc), Script::default());
    script.control(&mut p);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 8)]);
    let bytes = p.take(0)[0].bytes.len() as u64;
    let sent = Sent { bytes, in_flight_bytes: None, app_limited: true };
    let acked = Acked {
        bytes: 8,
        rtt_ns: Some(5),
        in_flight_bytes: 0,
        app_limited: true,
        arrival_ns: None,
    };
    let lost = Lost { bytes: 8, timeout: false };
    let (now, qpn) = (p.now, p.ends[0].qpn);
    for feedback in [Feedback::Acked(acked), Feedback::Lost(lost), Feedback::Marked(3)] {
        p.ends[0].nic.rate_feedback(now, qpn, &feedback).unwrap();
    }
    let expected = [Heard::Sent(sent), Heard::Acked(acked), Heard::Lost(lost), Heard::Marked(3)];
    assert_eq!(script.heard(), expected);
}

#[test]
fn every_connection_gets_a_controller_of_its_own() {
    let script = Script::default();
    let mut p = Pair::rc();
    p.ends[0].nic.set_default_rate_controller(script.factory());
    let End { nic, pd, cq, .. } = &mut p.ends[0];
    let qpn = nic.create_qp(&QpInit::new(QpType::Uc, *pd, *cq)).unwrap();
    assert_eq!(script.heard(), [], "there is no connection yet");
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    let to = Connect { path_mtu: Mtu::B512, ..connect_to(addr(1), Qpn::new(5)) };
    for _ in 0..2 {
        nic.connect(p.now, qpn, &to).unwrap();
        assert_eq!(script.heard(), [Heard::Built("UC", Mtu::B512)]);
        nic.modify_qp(p.now, qpn, &reset).unwrap();
    }
}

/// Paced packets go in runs like others, and no faster than the pacer allows single ones.
#[test]
fn a_run_is_no_longer_than_the_pacers_burst() {
    let (mut p, script) = (Pair::rc(), Script::default());
    *script.rate.lock().unwrap() = Some(100_000_000);
    script.control(&mut p);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 500_000)]);
    let begin = p.now;
    let mut bytes = 0;
    while bytes < 300_000 {
        let frames = p.take(0);
        bytes += frames.iter().map(|frame| frame.bytes.len() as u64).sum::<u64>();
        let earliest = bytes.saturating_sub(2 * 1_250) * 80;
        assert!(p.now.nanos_since(begin) >= earliest, "{bytes} bytes too soon");
        p.deliver_all(&frames);
        let answers = p.take(1);
        p.deliver_all(&answers);
        assert!(p.fire_timer(), "{bytes} bytes, and no more");
    }
    assert!(p.now.nanos_since(begin) <= 300_000 * 80 + 1_000_000, "too slow");
}

#[test]
fn a_write_under_way_is_cut_alike_when_a_controller_comes() {
    let (mut p, script) = (Pair::rc(), Script::default());
    let bytes = p.fill(0, 0, 100 * 1024);
    p.post(0, 1, SendOp::Write(p.ends[1].remote(0)), &[p.ends[0].sge(0, 100 * 1024)]);
    let frames = p.take(0);
    p.deliver_all(&frames[..40]);
    // The rest is lost and sent again.
    script.control(&mut p);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)]);
    assert!(p.ends[1].buffer.to_vec(0, 100 * 1024) == bytes);
}
