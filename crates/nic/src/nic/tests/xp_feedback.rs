//! XP's probes and feedback, and how rate controllers use them.

use super::*;
use crate::rate::{BbrParams, EqdsParams, SwiftParams};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// One-way delay.
const DELAY_NS: u64 = 5 * US;

fn controlled(control: RateControl) -> Pair {
    let mut p = Pair::of(QpType::Xp);
    let (now, end) = (p.now, &mut p.ends[0]);
    end.nic.set_rate_controller(now, end.qpn, control.factory()).unwrap();
    p
}

fn swift() -> Pair {
    controlled(RateControl::Swift(SwiftParams::default()))
}

fn eqds() -> Pair {
    controlled(RateControl::Eqds(EqdsParams::new(100_000_000_000)))
}

impl Pair {
    /// As [`Pair::stream_over`], over a data-centre path.
    fn stream(&mut self, for_ns: u64, arrives: impl Fn(&Frame) -> bool) -> u64 {
        self.stream_over(DELAY_NS, for_ns, arrives)
    }

    /// Keeps 64 KiB of WRITEs posted, and lets time pass by a fifth of the delay at a time; frames
    /// arrive after the delay if `arrives` says so. Returns the bytes that have arrived.
    fn stream_over(&mut self, delay_ns: u64, for_ns: u64, arrives: impl Fn(&Frame) -> bool) -> u64 {
        let before = self.ends[1].nic.counters().rx_message_bytes;
        let end = self.now.plus_nanos(for_ns);
        // What an earlier call has left posted completes among these.
        let mut posted: usize = 0;
        let mut wire: std::collections::VecDeque<(Time, Frame)> = Default::default();
        while self.now < end {
            while posted < 4 {
                let remote = self.ends[1].remote(0);
                self.post(0, 1, SendOp::Write(remote), &[self.ends[0].sge(0, 16 << 10)]);
                posted += 1;
            }
            for i in 0..2 {
                let at = self.now.plus_nanos(delay_ns);
                wire.extend(self.take(i).into_iter().map(|frame| (at, frame)));
            }
            self.now = self.now.plus_nanos((delay_ns / 5).min(100 * US));
            while wire.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, frame) = wire.pop_front().unwrap();
                if arrives(&frame) {
                    self.deliver(&frame);
                }
            }
            self.ends.iter_mut().for_each(|end| end.nic.handle_timeout(self.now));
            posted = posted.saturating_sub(self.ends[0].completions().len());
        }
        self.ends[1].nic.counters().rx_message_bytes - before
    }
}

fn is_feedback(frame: &Frame) -> bool {
    frame.opcode() == Opcode::XP_FEEDBACK
}

#[test]
fn a_window_is_sent_and_the_rest_waits_for_feedback() {
    let mut p = swift();
    let remote = p.ends[1].remote(0);
    p.post(0, 1, SendOp::Write(remote), &[p.ends[0].sge(0, 100 << 10)]);
    let frames = p.take(0);
    let data = frames.iter().filter(|frame| frame.opcode() == Opcode::XP_WRITE_MIDDLE).count();
    assert!((15..=17).contains(&data), "{data} packets of a window of 16");
    assert_eq!(frames.last().unwrap().opcode(), Opcode::XP_PROBE);
    assert_eq!(p.take(0).len(), 0);
    p.deliver_all(&frames);
    p.now = p.now.plus_nanos(10 * US);
    let feedback = p.take(1);
    assert_eq!(feedback.len(), 1);
    assert!(is_feedback(&feedback[0]));
    // Without the token none of it is believed.
    let forged = forge(&feedback[0], |bytes| bytes[15] ^= 1);
    p.deliver(&forged);
    assert_eq!(p.ends[0].nic.counters().drop_token, 1);
    assert_eq!(p.take(0).len(), 0);
    p.deliver(&feedback[0]);
    assert!(p.take(0).len() >= data, "a window more");
}

#[test]
fn probes_are_a_few_in_a_round_trip() {
    let mut p = swift();
    p.stream(MS, |_| true);
    let before = p.ends[1].nic.counters().clone();
    p.stream(MS, |_| true);
    let after = p.ends[1].nic.counters();
    let feedback = after.tx_packets - before.tx_packets;
    // 10 us and the microsecond that each end takes.
    assert!((80..=1_000).contains(&feedback), "{feedback} in 90 round trips");
}

#[test]
fn without_feedback_the_rate_falls_to_a_floor_and_recovers() {
    for mut p in [swift(), eqds()] {
        let before = p.stream(4 * MS, |_| true);
        let cut = p.stream(100 * MS, |frame| !is_feedback(frame)) / 25;
        assert!(cut < before / 8, "{before} bytes in 4 ms, {cut} without feedback");
        assert!(cut > 0, "some packets go nevertheless");
        p.stream(20 * MS, |_| true);
        let after = p.stream(4 * MS, |_| true);
        assert!(after > before / 4, "{before} bytes in 4 ms before, {after} after");
    }
}

#[test]
fn a_lost_answer_costs_freshness_and_nothing_else() {
    for make in [swift, eqds] {
        let whole = make().stream(20 * MS, |_| true);
        let count = core::cell::Cell::new(0);
        let every_third = |frame: &Frame| {
            count.set(count.get() + u32::from(is_feedback(frame)));
            !is_feedback(frame) || !u32::is_multiple_of(count.get(), 3)
        };
        let some = make().stream(20 * MS, every_third);
        assert!(some > whole / 2, "{whole} bytes, {some} with a third of the feedback lost");
    }
}

/// Feedback that takes longer than any data-centre timeout is late, not lost.
#[test]
fn a_long_path_is_not_taken_for_a_dead_one() {
    let delay_ns = 40 * MS;
    let sent_in = |round_trips: u64| {
        let mut p = controlled(RateControl::Bbr(BbrParams::default()));
        p.stream_over(delay_ns, round_trips * 2 * delay_ns, |_| true)
    };
    let (first, eight) = (sent_in(1), sent_in(8));
    assert!(first > 0, "it sends before anything is known");
    // Each round trip doubles the rate.
    assert!(eight > 32 * first, "{first} bytes in the first round trip, {eight} in eight");
}

#[test]
fn credit_is_granted_at_the_rate_of_the_receivers_link() {
    let mut p = eqds();
    p.stream(2 * MS, |_| true);
    let bytes = p.stream(10 * MS, |_| true);
    let gbps = bytes as f64 * 8.0 / (10 * MS) as f64;
    // Headers use credit too.
    assert!((8.0..=10.1).contains(&gbps), "{gbps} Gbit/s of 10");
}

#[test]
fn a_queue_pair_that_is_gone_wants_no_credit() {
    let mut p = eqds();
    let remote = p.ends[1].remote(0);
    p.post(0, 1, SendOp::Write(remote), &[p.ends[0].sge(0, 100 << 10)]);
    let frames = p.take(0);
    p.deliver_all(&frames);
    assert!(p.ends[1].nic.poll_timeout().is_some(), "there is credit to grant");
    let (now, qpn) = (p.now, p.ends[1].qpn);
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    p.ends[1].nic.modify_qp(now, qpn, &err).unwrap();
    p.now = p.now.plus_nanos(MS);
    p.ends[1].nic.handle_timeout(p.now);
    assert_eq!(p.ends[1].nic.poll_timeout(), None);
}

#[test]
fn a_sender_that_nobody_answers_comes_to_rest() {
    for mut p in [swift(), eqds()] {
        let remote = p.ends[1].remote(0);
        p.post(0, 1, SendOp::Write(remote), &[p.ends[0].sge(0, 100 << 10)]);
        for _ in 0..10_000 {
            p.take(0);
            if !p.fire_timer() {
                break;
            }
        }
        assert_eq!(p.ends[0].nic.poll_timeout(), None);
        assert_eq!(p.ends[0].statuses(), [(1, WcStatus::Success)], "all of it was sent");
    }
}
