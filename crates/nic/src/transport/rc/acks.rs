//! The requester's receiving half: acknowledgements, NAKs, and the data of READs and atomics.

use bowline_wire::{NakCode, OpKind, PacketView, Psn, Syndrome};

use super::requester::Requester;
use crate::qp::{Cx, QpCore};
use crate::queue::Wqe;
use crate::rate::Acked;
use crate::types::{QpState, SendOp, WcStatus};

impl<const SERVICE: u8> Requester<SERVICE> {
    pub(super) fn receive(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, packet: &PacketView<'_>) {
        if !matches!(core.state, QpState::Rts | QpState::Sqd) {
            cx.counters.drop_state += 1;
            return;
        }
        let psn = packet.psn();
        // A response to an outstanding request, or a stale one.
        if psn.before(self.una) || !psn.before(self.sent_end) {
            return self.on_stale(cx, packet);
        }
        match packet.info().kind {
            OpKind::ReadResponse => self.on_read_response(core, cx, psn, packet.payload()),
            OpKind::AtomicAck => match packet.atomic_ack() {
                Some(ack) => self.on_atomic_ack(core, cx, psn, ack.original),
                None => cx.counters.drop_malformed += 1,
            },
            _ => match packet.aeth() {
                Some(aeth) => self.on_ack(core, cx, psn, aeth.syndrome),
                None => cx.counters.drop_malformed += 1,
            },
        }
        self.update_charge(core, cx);
        if core.limits.pacer.is_controlled() {
            self.tell_acked(core, cx);
        }
    }

    /// Handles a response to no outstanding request: a duplicate, or the answer to a probe. The
    /// latter need not have the probe's PSN: Linux's rxe counts neither READs nor the beginning of
    /// a connection.
    #[cold]
    fn on_stale(&mut self, cx: &mut Cx<'_>, packet: &PacketView<'_>) {
        let acks = packet.aeth().is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        if acks && core::mem::take(&mut self.probing) {
            self.probe_answers = self.probe_answers.wrapping_add(1);
            self.progress_at = cx.now;
            cx.counters.rx_acks += 1;
        } else {
            cx.counters.drop_stale += 1;
        }
    }

    /// Reports to the rate controller what a packet has acknowledged.
    fn tell_acked(&mut self, core: &mut QpCore, cx: &Cx<'_>) {
        let (now, rtt_ns) = (cx.now, self.rtt_sample_ns.take());
        let bytes = core::mem::take(&mut self.acked_bytes);
        if bytes == 0 && rtt_ns.is_none() {
            return;
        }
        let in_flight_bytes = self.in_flight_bytes(core);
        let app_limited = !self.has_work(core);
        let arrival_ns = None;
        let acked = Acked { bytes, rtt_ns, in_flight_bytes, app_limited, arrival_ns };
        core.limits.pacer.tell(now, |controller| controller.on_acked(now, &acked));
    }

    fn on_ack(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, psn: Psn, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack { .. } => {
                cx.counters.rx_acks += 1;
                if self.acknowledge(core, cx, psn.next()) {
                    self.on_gap(core, cx);
                }
            }
            Syndrome::Rnr { timer } => {
                cx.counters.rx_rnr += 1;
                core.counters.rx_naks += 1;
                self.on_rnr(core, cx, psn, timer);
            }
            Syndrome::Nak(code) => {
                core.counters.rx_naks += 1;
                self.on_nak(core, cx, psn, code);
            }
            Syndrome::Reserved(_) => cx.counters.drop_malformed += 1,
        }
    }

    /// Everything before `end` has arrived. `true` if an earlier response is missing.
    ///
    /// READs and atomics complete only when their data has arrived: an acknowledgement of a later
    /// request means that the data was lost.
    fn acknowledge(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, end: Psn) -> bool {
        let before = self.una;
        let mut gap = false;
        while self.una.before(end) && core.sq.head() < self.started {
            let Some(wqe) = core.sq.get(core.sq.head()).copied() else {
                break;
            };
            if wqe.wants_response() {
                gap = true;
                break;
            }
            let wqe_end = wqe.end_psn();
            let arrived = if end.before(wqe_end) { end } else { wqe_end };
            if core.limits.pacer.is_controlled() {
                self.acked_bytes += payload_between(&wqe, self.una, arrived, core.mtu());
            }
            self.una = arrived;
            if arrived != wqe_end {
                break;
            }
            core.sq.pop();
            core.two_sided.sent += u64::from(wqe.is_two_sided());
            core.complete_send(cx, &wqe, WcStatus::Success);
        }
        if self.una != before {
            self.on_progress(core, cx);
        }
        if gap && self.heard.is_none_or(|heard| end.after(heard)) {
            self.heard = Some(end);
            // Whatever became of the response: the peer is alive and makes progress.
            self.retries_left = core.attrs.retry_count;
        }
        gap
    }

    /// Something new was acknowledged.
    fn on_progress(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.heard = None;
        self.probing = false;
        self.retries_left = core.attrs.retry_count;
        self.rnr_retries_left = core.attrs.rnr_retry;
        self.progress_at = cx.now;
        let sample = self.rtt.on_progress(cx.now, self.una);
        if sample.is_some() && core.limits.pacer.is_controlled() {
            self.rtt_sample_ns = sample;
        }
        if self.next.before(self.una) {
            // What was about to be retransmitted has arrived after all.
            self.next = self.una;
            self.cursor = core.sq.head();
        }
        self.restart_timer(core, cx);
    }

    /// A response is missing: handled like a NAK, once per gap. The rest of the old responses keep
    /// arriving for a round trip, and must not make us go back repeatedly.
    fn on_gap(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        if self.gap_at == Some(self.una) {
            cx.counters.drop_stale += 1;
            return;
        }
        cx.counters.read_gaps += 1;
        if self.consume_retry(core) {
            self.gap_at = Some(self.una);
            self.recover(core, cx, false);
        }
    }

    fn on_nak(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, psn: Psn, code: NakCode) {
        // A NAK acknowledges everything before it.
        let gap = self.acknowledge(core, cx, psn);
        let status = match code {
            NakCode::PsnSequence => {
                cx.counters.rx_nak_sequence += 1;
                if self.rnr_until.is_some() && psn == self.una {
                    // Like rxe, the peer complains about what followed the request that found no
                    // receive: we wait, and go back there, anyway.
                    return;
                }
                if self.next == self.una {
                    // A duplicate: everything that it asks for is about to be retransmitted.
                    cx.counters.drop_stale += 1;
                } else if self.consume_retry(core) {
                    self.recover(core, cx, false);
                }
                return;
            }
            NakCode::InvalidRequest => {
                cx.counters.rx_nak_invalid += 1;
                WcStatus::RemInvReqErr
            }
            NakCode::RemoteAccess => {
                cx.counters.rx_nak_access += 1;
                WcStatus::RemAccessErr
            }
            NakCode::RemoteOperational => {
                cx.counters.rx_nak_operational += 1;
                WcStatus::RemOpErr
            }
            NakCode::InvalidRdRequest | NakCode::Reserved(_) => {
                cx.counters.drop_malformed += 1;
                return;
            }
        };
        if gap {
            // The refused request follows one whose response is lost: fetch that first. The
            // responder is in error by now, so the retries will run out and report it.
            self.on_gap(core, cx);
            return;
        }
        self.fail_head(core, cx, status);
    }

    fn on_rnr(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, psn: Psn, timer: u8) {
        if self.acknowledge(core, cx, psn) {
            self.on_gap(core, cx);
            return;
        }
        // The peer is alive: it lacks a receive, not a connection.
        self.retries_left = core.attrs.retry_count;
        // 7 means unlimited (IBTA 9.9.2.1.1).
        if core.attrs.rnr_retry != 7 {
            match self.rnr_retries_left.checked_sub(1) {
                Some(left) => self.rnr_retries_left = left,
                None => return self.fail_head(core, cx, WcStatus::RnrRetryExcErr),
            }
        }
        self.go_back(core, cx);
        self.rnr_until = Some(cx.now.plus_nanos(rnr_timer_ns(timer)));
    }

    fn on_read_response(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, psn: Psn, data: &[u8]) {
        if !self.reach(core, cx, psn) {
            return;
        }
        let number = core.sq.head();
        let Some(wqe) = core.sq.get(number).copied() else {
            return;
        };
        if !matches!(wqe.op, SendOp::Read(_)) {
            cx.counters.drop_stale += 1;
            return;
        }
        let mtu = core.mtu();
        let offset = psn.diff(wqe.first_psn) as u32 * mtu;
        if data.len() as u32 != mtu.min(wqe.len - offset) {
            return self.fail_head(core, cx, WcStatus::BadRespErr);
        }
        let ends = offset + data.len() as u32 == wqe.len;
        if cx.memory.scatter(core.init.pd, core.sq.sges(number), offset, data, ends).is_err() {
            return self.fail_head(core, cx, WcStatus::LocProtErr);
        }
        if core.limits.pacer.is_controlled() {
            self.acked_bytes += data.len() as u64;
        }
        self.answered(core, cx);
    }

    fn on_atomic_ack(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, psn: Psn, original: u64) {
        if !self.reach(core, cx, psn) {
            return;
        }
        let number = core.sq.head();
        let Some(wqe) = core.sq.get(number).copied() else {
            return;
        };
        if !matches!(wqe.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            cx.counters.drop_stale += 1;
            return;
        }
        let bytes = original.to_ne_bytes();
        if cx.memory.scatter(core.init.pd, core.sq.sges(number), 0, &bytes, true).is_err() {
            return self.fail_head(core, cx, WcStatus::LocProtErr);
        }
        self.answered(core, cx);
    }

    /// Advances `una` to the PSN of a response, which acknowledges everything sent before it;
    /// `false` if another response is missing in between.
    fn reach(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, psn: Psn) -> bool {
        if self.una == psn {
            return true;
        }
        self.acknowledge(core, cx, psn);
        if self.una != psn {
            self.on_gap(core, cx);
            return false;
        }
        true
    }

    /// The response at `una` has arrived.
    fn answered(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.una = self.una.next();
        while self.reads.front().is_some_and(|end| !end.after(self.una)) {
            self.reads.pop_front();
        }
        let done = core.sq.get(core.sq.head()).is_some_and(|wqe| wqe.end_psn() == self.una);
        if done && let Some(wqe) = core.sq.pop() {
            core.complete_send(cx, &wqe, WcStatus::Success);
        }
        self.on_progress(core, cx);
    }
}

/// Payload of a request's packets from one PSN to another.
fn payload_between(wqe: &Wqe, from: Psn, to: Psn, mtu: u32) -> u64 {
    let before = |psn: Psn| {
        let packets = psn.diff(wqe.first_psn).max(0) as u64;
        (packets * u64::from(mtu)).min(wqe.len.into())
    };
    before(to).saturating_sub(before(from))
}

/// How long an RNR NAK asks to wait (IBTA table 45), in units of 10 µs.
const RNR_TIMER_10US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

fn rnr_timer_ns(timer: u8) -> u64 {
    u64::from(RNR_TIMER_10US[usize::from(timer & 31)]) * 10_000
}
