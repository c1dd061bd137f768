//! Probes and feedback, for rate controllers that need to know what arrives: `docs/xp.md`.

use bowline_wire::{Opcode, PacketView, Psn, XpCc};

use super::Xp;
use super::requester::MAX_HEADERS;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::rate::{Lost, Report, ReportMeter};
use crate::time::Time;
use crate::tx::HeaderBuf;

/// Probes per round trip, while data is in flight.
const PROBES_PER_RTT: u64 = 8;
/// How long to wait for feedback before anything is known about the path.
const FIRST_TIMEOUT_NS: u64 = 1_000_000;
/// Later timeouts: this many round trips, but at least the minimum below, doubling with each
/// timeout in a row, up to the maximum below where round trips are shorter.
const TIMEOUT_RTTS: u64 = 4;
const MIN_TIMEOUT_NS: u64 = 200_000;
const MAX_TIMEOUT_NS: u64 = 10_000_000;
/// Until a round trip is known, this many probes in a row are repeated before what is in flight
/// counts as lost: some 300 ms, longer than the longest path on earth.
const FIRST_PROBES: u32 = 32;
/// Upper bound, whatever round trip a peer claims.
const LONGEST_TIMEOUT_NS: u64 = 10_000_000_000;
/// When to try again if a probe that is due cannot be sent.
const RETRY_NS: u64 = 1_000;
/// Requests for whose bytes credit is requested at a time.
const DEMAND_REQUESTS: u64 = 16;

/// The sender's half: state of a connection whose controller wants feedback. All counts are in
/// bytes, BTH to ICRC.
#[derive(Debug)]
pub(super) struct Probing {
    meter: ReportMeter,
    /// Data sent.
    sent: u64,
    /// Sent by the time of the latest probe.
    probed: u64,
    /// Feedback for bytes before this is no longer awaited: it stayed away for too long.
    written_off: u64,
    probed_at: Time,
    answered_at: Time,
    /// Bytes that had landed when the most recently answered probe came.
    landed_at_stamp: u64,
    rtt_ns: Option<u64>,
    /// Timeouts in a row.
    timeouts: u32,
    /// When to probe for what was sent since the latest probe.
    probe_at: Time,
    /// When feedback counts as overdue.
    timeout_at: Time,
    /// A probe is due.
    wanted: bool,
    /// Cumulative counts of the latest feedback.
    marked: u32,
    credit: u32,
    /// Credit that the latest probe requested and that has not come.
    asked: u32,
    /// When the most recently answered probe arrived, by the receiver's clock and in its units; the
    /// clock starts anywhere.
    arrival: Option<u64>,
}

impl Probing {
    /// The smoothed round trip of probes.
    pub(super) fn round_trip_ns(&self) -> Option<u64> {
        self.rtt_ns
    }

    fn new() -> Probing {
        Probing {
            meter: ReportMeter::new(1),
            sent: 0,
            probed: 0,
            written_off: 0,
            probed_at: Time::ZERO,
            answered_at: Time::ZERO,
            landed_at_stamp: 0,
            rtt_ns: None,
            timeouts: 0,
            probe_at: Time::NEVER,
            timeout_at: Time::NEVER,
            wanted: false,
            marked: 0,
            credit: 0,
            asked: 0,
            arrival: None,
        }
    }

    fn in_flight(&self) -> u64 {
        self.meter.in_flight_bytes(self.sent).min(self.sent - self.written_off)
    }

    /// Whether a probe is outstanding.
    fn has_outstanding(&self) -> bool {
        self.probed_at > self.answered_at
    }

    fn timeout_ns(&self) -> u64 {
        let base = self.rtt_ns.map_or(FIRST_TIMEOUT_NS, |rtt| TIMEOUT_RTTS.saturating_mul(rtt));
        let base = base.clamp(MIN_TIMEOUT_NS, LONGEST_TIMEOUT_NS);
        (base << self.timeouts.min(8)).min(base.max(MAX_TIMEOUT_NS))
    }

    /// Whether the path is still unknown, and its round trip may exceed the silence so far.
    fn may_be_long(&self) -> bool {
        self.rtt_ns.is_none() && self.timeouts < FIRST_PROBES
    }
}

/// The receiver's half, once a probe has arrived.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// Data received, and the marked part of it.
    received: u64,
    marked: u32,
    /// Credit granted.
    granted: u32,
    /// The latest probe: its stamp, its arrival time, and what had been received by then.
    probe: Option<(u32, Time, u64)>,
    /// Feedback is due.
    wanted: bool,
}

impl Xp {
    /// One or more packets of the connection's data have arrived.
    #[inline]
    pub(super) fn count_arrival(&mut self, bytes: u64, marked: bool) {
        if let Some(answering) = self.more.as_mut().and_then(|more| more.answering.as_mut()) {
            // The count started at a number that the peer chose.
            answering.received = answering.received.saturating_add(bytes);
            if marked {
                answering.marked = answering.marked.wrapping_add(bytes as u32);
            }
        }
    }

    /// Handles a probe or feedback; returns whether there is something to send.
    pub(super) fn receive_control(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
    ) -> bool {
        let Some(cc) = packet.xpcc() else { return false };
        if cc.token != core.attrs.rq_psn {
            cx.counters.drop_token += 1;
            return false;
        }
        if packet.opcode() == Opcode::XP_FEEDBACK {
            return self.hear(core, cx, &cc);
        }
        let answering = self.more().answering.get_or_insert_with(|| {
            // Losses before the first probe are unknown.
            Box::new(Answering { received: cc.bytes, ..Answering::default() })
        });
        answering.probe = Some((cc.stamp_ns, cx.now, answering.received));
        answering.wanted = true;
        if let Some(grants) = cx.grants {
            // A probe requests what its sender lacks; credit that was granted and that it has not
            // heard of is in flight.
            let unheard = answering.granted.wrapping_sub(cc.credit_bytes);
            grants.set_want(core.index as usize, cc.marked_bytes.saturating_sub(unheard).into());
        }
        true
    }

    /// Grants the peer credit, to be announced with the next feedback.
    pub(super) fn grant(&mut self, bytes: u64) {
        if let Some(answering) = self.more.as_mut().and_then(|more| more.answering.as_mut()) {
            answering.granted = answering.granted.wrapping_add(bytes as u32);
            answering.wanted = true;
        }
    }

    /// Passes feedback to the controller.
    fn hear(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, cc: &XpCc) -> bool {
        let (now, app_limited) = (cx.now, core.sq.is_empty());
        let Some(probing) = self.more.as_mut().and_then(|more| more.probing.as_mut()) else {
            cx.counters.drop_stale += 1;
            return false;
        };
        // Restore the upper bits: the latest time with these lower bits.
        let age_ns = (now.as_nanos() as u32).wrapping_sub(cc.stamp_ns);
        let stamp = Time::from_nanos(now.as_nanos().saturating_sub(age_ns.into()));
        let fresh = stamp > probing.answered_at;
        let landed_at_stamp = if fresh { cc.bytes } else { probing.landed_at_stamp };
        let arrival = later_arrival(probing.arrival, cc.arrival);
        probing.arrival = Some(arrival);
        let report = Report {
            stamp,
            held_ns: cc.hold_ns.into(),
            landed_at_stamp: landed_at_stamp.min(cc.bytes),
            landed: cc.bytes,
            clock_ns: arrival * XpCc::ARRIVAL_NS,
        };
        let Some(mut heard) = probing.meter.on_report(now, probing.sent, &report) else {
            cx.counters.drop_stale += 1;
            return false;
        };
        probing.landed_at_stamp = report.landed_at_stamp;
        probing.answered_at = stamp.max(probing.answered_at);
        probing.timeouts = 0;
        if let Some(rtt_ns) = heard.acked.rtt_ns {
            probing.rtt_ns = Some(probing.rtt_ns.map_or(rtt_ns, |s| s - s / 8 + rtt_ns / 8));
        }
        heard.acked.in_flight_bytes = probing.in_flight();
        heard.acked.app_limited = app_limited;
        let marked = newer_by(&mut probing.marked, cc.marked_bytes);
        let credit = newer_by(&mut probing.credit, cc.credit_bytes);
        probing.asked = probing.asked.saturating_sub(credit);
        let waits = probing.in_flight() > 0 || !app_limited;
        probing.timeout_at = if waits { now.plus_nanos(probing.timeout_ns()) } else { Time::NEVER };
        core.limits.pacer.tell(now, |controller| {
            controller.on_acked(now, &heard.acked);
            if let Some(lost) = &heard.lost {
                controller.on_lost(now, lost);
            }
            if marked > 0 {
                controller.on_marked(now, marked.into());
            }
            if credit > 0 {
                controller.on_credit(now, credit.into());
            }
        });
        true
    }

    /// When a probe is due, if nothing happens before.
    pub(super) fn probe_deadline(&self) -> Time {
        let probing = self.more.as_ref().and_then(|more| more.probing.as_ref());
        probing.map_or(Time::NEVER, |probing| probing.probe_at.min(probing.timeout_at))
    }

    /// A probe is due, or feedback is overdue: then what is in flight is given up.
    pub(super) fn expire_probe(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let is_serving = self.more.as_ref().is_some_and(|more| more.serving.is_busy());
        let Some(probing) = self.more.as_mut().and_then(|more| more.probing.as_mut()) else {
            return;
        };
        if probing.probe_at <= cx.now {
            probing.probe_at = Time::NEVER;
            probing.wanted = true;
        }
        if probing.timeout_at > cx.now {
            return;
        }
        probing.wanted = true;
        if probing.has_outstanding() {
            probing.timeouts = probing.timeouts.saturating_add(1);
            if !probing.may_be_long() {
                let lost = Lost { bytes: probing.in_flight(), timeout: true };
                probing.written_off = probing.sent;
                core.limits.pacer.tell(cx.now, |controller| controller.on_lost(cx.now, &lost));
            }
        }
        probing.timeout_at = cx.now.plus_nanos(probing.timeout_ns());
        if core.sq.is_empty() && !is_serving {
            // No answer is awaited any longer.
            probing.wanted = false;
            probing.timeout_at = Time::NEVER;
        }
    }

    /// Whether a probe or feedback waits to be sent.
    pub(super) fn has_control(&self) -> bool {
        self.more.as_ref().is_some_and(|more| {
            more.probing.as_ref().is_some_and(|probing| probing.wanted)
                || more.answering.as_ref().is_some_and(|answering| answering.wanted)
        })
    }

    /// Bytes in flight, where that is known.
    pub(super) fn in_flight(&self) -> Option<u64> {
        Some(self.more.as_ref()?.probing.as_ref()?.in_flight())
    }

    /// Packets of `len` bytes that the controller's window admits: at least one if nothing is in
    /// flight.
    #[inline]
    pub(super) fn window_packets(&self, core: &QpCore, len: u32) -> u32 {
        let window = core.limits.pacer.window_bytes();
        let Some(in_flight) = self.in_flight().filter(|_| window != u64::MAX) else {
            return u32::MAX;
        };
        // Windows are in whole packets, headers or not.
        let len = u64::from(len);
        let room = (window.saturating_sub(in_flight) + len / 2) / len;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        if in_flight == 0 { room.max(1) } else { room }
    }

    /// Starts tracking what the controller needs, if it wants feedback.
    pub(super) fn begin_probing(&mut self, core: &QpCore) {
        if core.limits.pacer.wants_feedback() {
            self.more().probing.get_or_insert_with(|| Box::new(Probing::new()));
        }
    }

    /// This many bytes of data were sent.
    pub(super) fn count_sent(&mut self, bytes: u64) {
        if let Some(probing) = self.more.as_mut().and_then(|more| more.probing.as_mut()) {
            probing.sent += bytes;
        }
    }

    /// Data was sent, or is held back: sends a probe if one is due.
    pub(super) fn probe(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        progress: Progress,
    ) {
        let demand = self.demand(core);
        let Some(probing) = self.more.as_mut().and_then(|more| more.probing.as_mut()) else {
            return;
        };
        let unprobed = probing.sent > probing.probed;
        let held = progress == Progress::WindowFull
            || (progress == Progress::Paced && core.limits.pacer.next() == Time::NEVER);
        let interval_ns = probing.rtt_ns.map_or(FIRST_TIMEOUT_NS, |rtt| rtt / PROBES_PER_RTT);
        let elapsed = cx.now.nanos_since(probing.probed_at) >= interval_ns;
        // The QP waits for feedback itself.
        let now = probing.wanted
            || (unprobed && (held || elapsed || probing.probed == 0))
            || (held && demand > probing.asked);
        if unprobed && !now {
            probing.probe_at = probing.probed_at.plus_nanos(interval_ns);
        }
        if !now {
            return;
        }
        // Stamps differ, and none is zero.
        if probing.probed_at >= cx.now || !sink.has_room() {
            probing.probe_at = cx.now.plus_nanos(RETRY_NS);
            return;
        }
        let cc = XpCc {
            reserved: 0,
            token: core.attrs.sq_psn,
            stamp_ns: cx.now.as_nanos() as u32,
            hold_ns: 0,
            bytes: probing.sent,
            marked_bytes: demand,
            credit_bytes: probing.credit,
            arrival: 0,
        };
        if !probing.has_outstanding() || probing.timeout_at == Time::NEVER {
            probing.timeout_at = cx.now.plus_nanos(probing.timeout_ns());
        }
        probing.meter.on_stamp(cx.now, probing.sent);
        probing.probed = probing.sent;
        probing.probed_at = cx.now;
        probing.asked = demand;
        probing.wanted = false;
        probing.probe_at = Time::NEVER;
        send(core, cx, sink, Opcode::XP_PROBE, &cc);
    }

    /// Credit that the requests at the head of the queue still need.
    fn demand(&self, core: &QpCore) -> u32 {
        let Some(credit) = core.limits.pacer.turn_left() else { return 0 };
        let head = core.sq.head();
        let requests = (head..core.sq.tail().min(head + DEMAND_REQUESTS)).filter_map(|number| {
            let wqe = core.sq.get(number)?;
            (!wqe.executed && !wqe.wants_response()).then_some(u64::from(wqe.len))
        });
        let sent = u64::from(self.next_packet) * u64::from(core.mtu());
        let bytes = requests.sum::<u64>().saturating_sub(sent) + self.unanswered_bytes();
        // Credit covers packets with their headers.
        let packets = bytes.div_ceil(core.mtu().into());
        let lacking = (bytes + packets * u64::from(MAX_HEADERS)).saturating_sub(credit);
        u32::try_from(lacking).unwrap_or(u32::MAX)
    }

    /// Sends feedback if it is due.
    pub(super) fn answer_probe(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, sink: &mut Sink<'_>) {
        let answering = self.more.as_mut().and_then(|more| more.answering.as_mut());
        let Some(answering) = answering.filter(|answering| answering.wanted) else { return };
        let (Some((stamp_ns, at, received)), true) = (answering.probe, sink.has_room()) else {
            return;
        };
        answering.wanted = false;
        let cc = XpCc {
            reserved: 0,
            token: core.attrs.sq_psn,
            stamp_ns,
            hold_ns: u32::try_from(cx.now.nanos_since(at)).unwrap_or(u32::MAX),
            bytes: received,
            marked_bytes: answering.marked,
            credit_bytes: answering.granted,
            arrival: (at.as_nanos() / XpCc::ARRIVAL_NS) as u32,
        };
        send(core, cx, sink, Opcode::XP_FEEDBACK, &cc);
    }
}

/// By how much a cumulative count has grown; 0 if it has not, because its packet was overtaken.
fn newer_by(count: &mut u32, now: u32) -> u32 {
    let by = now.wrapping_sub(*count);
    if by > i32::MAX as u32 {
        return 0;
    }
    *count = now;
    by
}

/// Reconstructs an arrival time from its lower bits and a known earlier one. One that is not later
/// belongs to a packet that was overtaken.
fn later_arrival(known: Option<u64>, told: u32) -> u64 {
    let known = known.unwrap_or(told.into());
    let by = told.wrapping_sub(known as u32);
    if by > i32::MAX as u32 { known } else { known + u64::from(by) }
}

fn send(core: &mut QpCore, cx: &mut Cx<'_>, sink: &mut Sink<'_>, opcode: Opcode, cc: &XpCc) {
    let mut header = HeaderBuf::new(&core.bth(opcode, Psn::new(0)));
    header.push(|bytes| cc.emit(bytes));
    cx.segments.clear();
    sink.send_control(core, cx, &header);
}

#[cfg(test)]
mod tests {
    use super::later_arrival;

    #[test]
    fn a_receivers_clock_begins_anywhere_and_wraps() {
        let first = later_arrival(None, 0xf000_0000);
        assert_eq!(first, 0xf000_0000);
        let second = later_arrival(Some(first), 0xffff_ffff);
        assert_eq!(second - first, 0x0fff_ffff);
        assert_eq!(later_arrival(Some(second), 0xf000_0001), second, "it was overtaken");
        assert_eq!(later_arrival(Some(second), 9) - second, 10);
    }
}
