//! The requester's sending half: PSNs, the window, go-back-N. [`super::acks`] is the other half.
//!
//! PSNs, oldest first: `una` is the first that is not acknowledged and lies in the request at the
//! queue's head; `next` is the next to send; `sent_end` is one past the last ever sent. Going back
//! moves `next` to an earlier PSN, and everything from there on is built again from the requests,
//! so nothing is buffered.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use bowline_wire::{AtomicEth, Opcode, Psn, Reth};

use super::super::{local, outbound};
use super::rtt::RttEstimate;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::Wqe;
use crate::rate::Lost;
use crate::sched::PathTable;
use crate::time::Time;
use crate::tx::HeaderBuf;
use crate::types::{QpState, Remote, SendFlags, SendOp, WcStatus};

/// Most PSNs in flight: far below half of the PSN space, where before and after become ambiguous.
const MAX_IN_FLIGHT: u32 = 1 << 22;

/// A READ is requested in pieces of this many bytes, so that its responses, which are not
/// acknowledged, stay within the window too. Pieces are cut at fixed offsets: a piece requested
/// again after a loss ends where it ended before, as a responder's record of it expects.
const READ_PIECE: u32 = 256 << 10;

/// READs of this many packets are requested two packets at a time. A response of two packets is a
/// first and a last one, which have the same headers, and so fill bursts across requests; middle
/// packets are shorter and would end a burst twice per READ.
const SHORT_READ: RangeInclusive<u32> = 3..=16;
/// Only where this many READs may be outstanding: each piece counts as one, and the limit must not
/// hold up a window's worth of responses.
const MANY_READS: u8 = 64;

/// Bytes after which an acknowledgement is requested in the middle of a message.
const ACK_EVERY: u32 = 768 << 10;

/// Sending half of a reliable connection whose opcodes start at `SERVICE`.
#[derive(Debug)]
pub(super) struct Requester<const SERVICE: u8> {
    pub(super) una: Psn,
    /// A response is missing, but the peer has confirmed everything before this PSN.
    pub(super) heard: Option<Psn>,
    pub(super) next: Psn,
    pub(super) sent_end: Psn,
    /// Request that `next` belongs to.
    pub(super) cursor: u64,
    /// Requests below this number have their PSNs.
    pub(super) started: u64,
    /// PSN that the next request to start will get.
    pub(super) fresh: Psn,
    /// Ends of the outstanding READs and atomics, oldest first.
    pub(super) reads: VecDeque<Psn>,
    /// When to go back if nothing is heard.
    pub(super) deadline: Time,
    /// Do not send before this: the peer had no receive posted.
    pub(super) rnr_until: Option<Time>,
    /// When something was last acknowledged or a probe answered, or the first packet went out after
    /// idling.
    pub(super) progress_at: Time,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// The gap in the responses at this PSN has been handled.
    pub(super) gap_at: Option<Psn>,
    /// Packets since the last acknowledgement request.
    since_ack_req: u32,
    /// Bytes charged to the path.
    charged: u64,
    /// Round-trip estimate.
    pub(super) rtt: RttEstimate,
    /// Acknowledged payload, and a round trip, not yet reported to the rate controller.
    pub(super) acked_bytes: u64,
    pub(super) rtt_sample_ns: Option<u64>,
    /// A probe is outstanding.
    pub(super) probing: bool,
    pub(super) probe_answers: u8,
}

impl<const SERVICE: u8> Default for Requester<SERVICE> {
    fn default() -> Self {
        let psn = Psn::new(0);
        Requester {
            una: psn,
            heard: None,
            next: psn,
            sent_end: psn,
            cursor: 0,
            started: 0,
            fresh: psn,
            reads: VecDeque::new(),
            deadline: Time::NEVER,
            rnr_until: None,
            progress_at: Time::ZERO,
            retries_left: 0,
            rnr_retries_left: 0,
            gap_at: None,
            since_ack_req: 0,
            charged: 0,
            rtt: RttEstimate::default(),
            acked_bytes: 0,
            rtt_sample_ns: None,
            probing: false,
            probe_answers: 0,
        }
    }
}

/// The result of trying to send.
pub(super) enum Step {
    /// This many packets went out.
    Sent(u32),
    /// As many bytes as these packets have were copied to the peer's memory.
    Copied(u32),
    Stop(Progress),
}

impl<const SERVICE: u8> Requester<SERVICE> {
    pub(super) fn start(&mut self, core: &QpCore) {
        let psn = core.attrs.sq_psn;
        (self.una, self.next, self.sent_end, self.fresh) = (psn, psn, psn, psn);
        self.heard = None;
        (self.cursor, self.started) = (core.sq.head(), core.sq.head());
        self.retries_left = core.attrs.retry_count;
        self.rnr_retries_left = core.attrs.rnr_retry;
        self.reads.reserve(core.attrs.max_rd_atomic as usize);
    }

    /// Whether something could be sent now, as far as can be told without trying.
    pub(super) fn has_work(&self, core: &QpCore) -> bool {
        let may_send = match core.state {
            QpState::Rts => self.cursor < core.sq.sendable_end(),
            QpState::Sqd => self.cursor < self.started,
            _ => false,
        };
        may_send && self.rnr_until.is_none()
    }

    pub(super) fn is_drained(&self, core: &QpCore) -> bool {
        core.sq.head() >= self.started
    }

    pub(super) fn deadline(&self) -> Time {
        self.rnr_until.unwrap_or(self.deadline)
    }

    pub(super) fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        let mut progress = Progress::More;
        let mut left = budget;
        while left > 0 {
            match self.send_some(core, cx, sink, left) {
                Step::Sent(packets) => left = left.saturating_sub(packets),
                Step::Copied(packets) => {
                    left = left.saturating_sub(packets);
                    progress = Progress::Copied;
                }
                Step::Stop(why) => {
                    progress = why;
                    break;
                }
            }
        }
        self.update_charge(core, cx);
        progress
    }

    /// Sends packets of the request at `next`, as many as all limits allow, at most `budget`.
    fn send_some(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Step {
        if !self.has_work(core) {
            return Step::Stop(Progress::Idle);
        }
        let number = self.cursor;
        if number >= self.started && core.sq.is_local(number) {
            return self.execute_local(core, cx, number);
        }
        if core.peer_memory.is_some()
            && cx.memory.is_direct
            && number >= self.started
            && let Some(step) = self.write_directly(core, cx, number)
        {
            return step;
        }
        if core.limits.pacer.next() > cx.now {
            return Step::Stop(Progress::Paced);
        }
        if !sink.has_room() {
            return Step::Stop(Progress::More);
        }
        if number >= self.started
            && let Err(stop) = self.start_request(core, cx, number)
        {
            return Step::Stop(stop);
        }
        let Some(mut wqe) = core.sq.get(number).copied() else {
            return Step::Stop(Progress::Idle);
        };
        if wqe.executed {
            wqe.become_empty();
        }
        let k = self.next.diff(wqe.first_psn) as u32;
        let room = self.room(core, cx);
        if room == 0 {
            return Step::Stop(self.full(core, 1));
        }
        if wqe.wants_response() {
            return self.send_request(core, cx, sink, &wqe, k, room);
        }
        let packets = budget.min(room).min(wqe.packets - k);
        let ack_every = ACK_EVERY / core.mtu();
        // The next turn comes after all other QPs had theirs.
        let turn_ends =
            core.limits.path.is_some_and(|path| cx.paths.has_line(path, core.limits.called));
        let cut = outbound::Cut::of_reliable(core, &wqe);
        let mut middle: Option<HeaderBuf> = None;
        let mut i = 0;
        while i < packets {
            let piece = outbound::Piece { number, wqe: &wqe, k: k + i, psn: self.next, cut };
            // The end of a message requests an acknowledgement, since what follows may have to wait
            // for it (a fence, a full window, a request that fails); our responder answers many at
            // once. The packet that fills the window requests one too, or it would never open
            // again, and so does the last one before the QP waits for the path.
            let ends = k + i + 1 == wqe.packets;
            let parts = turn_ends && i + 1 == packets;
            let ack_req = ends || parts || room - i <= 2 || self.since_ack_req + 1 >= ack_every;
            // Most packets of a message are alike except for a few fields.
            let built;
            let header = match &mut middle {
                Some(header) if !ends => {
                    piece.renumber(header, ack_req);
                    // Stop before a packet that requests an acknowledgement, or is the last.
                    let most = (packets - i - u32::from(turn_ends))
                        .min(piece.alike())
                        .min((room - i).saturating_sub(2))
                        .min(ack_every.saturating_sub(1 + self.since_ack_req));
                    let sent = self.send_run(core, cx, sink, piece, header, most);
                    if sent > 0 {
                        i += sent;
                        if core.limits.pacer.next() > cx.now || !sink.has_room() {
                            break;
                        }
                        continue;
                    }
                    outbound::packet_payload(core, cx, piece).map(|()| &*header)
                }
                _ => {
                    built = outbound::build::<SERVICE>(core, cx, piece, ack_req);
                    if piece.alike() > 0 {
                        middle = built.ok();
                    }
                    built.as_ref().map_err(|denied| *denied)
                }
            };
            let Ok(header) = header else {
                return Step::Stop(self.refuse_locally(core, cx, number));
            };
            self.since_ack_req = if ack_req { 0 } else { self.since_ack_req + 1 };
            let ecn = core.data_ecn();
            sink.send(core, cx, header, ecn);
            self.sent(core, cx, &wqe, 1, ack_req);
            i += 1;
            if core.limits.pacer.next() > cx.now || !sink.has_room() {
                break;
            }
        }
        Step::Sent(i)
    }

    /// Sends packets that are alike as one run; see [`outbound::send_run`].
    fn send_run(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        first: outbound::Piece<'_>,
        header: &HeaderBuf,
        most: u32,
    ) -> u32 {
        // Retransmissions are counted one by one.
        if self.next.before(self.sent_end) {
            return 0;
        }
        let packets = outbound::send_run(core, cx, sink, first, header, most);
        if packets > 0 {
            self.since_ack_req += packets;
            self.sent(core, cx, first.wqe, packets, false);
        }
        packets
    }

    /// Sends a READ, or a piece of one, or an atomic, if its response fits the window.
    fn send_request(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        wqe: &Wqe,
        k: u32,
        room: u32,
    ) -> Step {
        if self.reads.len() >= core.attrs.max_rd_atomic as usize {
            return Step::Stop(Progress::Idle);
        }
        let psns = match wqe.op {
            SendOp::Read(_) => read_piece(core, wqe, k),
            _ => 1,
        };
        // A piece larger than the whole window goes when nothing else is in flight.
        if room < psns && self.next != self.una {
            return Step::Stop(self.full(core, psns));
        }
        cx.segments.clear();
        let header = self.request_header(core, wqe, k);
        let ecn = core.data_ecn();
        sink.send(core, cx, &header, ecn);
        self.sent(core, cx, wqe, psns, true);
        Step::Sent(1)
    }

    /// Assigns the next request its PSNs.
    fn start_request(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        number: u64,
    ) -> Result<(), Progress> {
        let mtu = core.mtu();
        let Some(wqe) = core.sq.get_mut(number) else {
            return Err(Progress::Idle);
        };
        if wqe.flags.contains(SendFlags::FENCE) && !self.reads.is_empty() {
            return Err(Progress::Idle);
        }
        wqe.first_psn = self.fresh;
        wqe.packets = if wqe.executed { 1 } else { outbound::packets_of(wqe.len, mtu) };
        let wqe = *wqe;
        if !wqe.inline && !wqe.executed {
            let sges = core.sq.sges(number);
            if cx.memory.check_local(core.init.pd, sges, wqe.wants_response()).is_err() {
                return Err(self.refuse_locally(core, cx, number));
            }
        }
        self.fresh = wqe.end_psn();
        self.started = number + 1;
        Ok(())
    }

    /// Carries out a local request, once all before it are done, so that it cannot affect a request
    /// that may have to be retransmitted.
    #[cold]
    fn execute_local(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, number: u64) -> Step {
        let Some(wqe) = core.sq.get(number).copied().filter(|_| core.sq.head() == number) else {
            return Step::Stop(Progress::Idle);
        };
        if local::execute(core, cx, &wqe.op).is_err() {
            self.fail_head(core, cx, WcStatus::MwBindErr);
            return Step::Stop(Progress::Idle);
        }
        core.sq.pop();
        (self.cursor, self.started) = (number + 1, number + 1);
        core.complete_send(cx, &wqe, WcStatus::Success);
        Step::Sent(0)
    }

    /// A request whose local memory is not valid fails, but only once all before it are done.
    fn refuse_locally(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, number: u64) -> Progress {
        if core.sq.head() == number {
            self.fail_head(core, cx, WcStatus::LocProtErr);
        }
        Progress::Idle
    }

    /// Completes the oldest request with an error and fails the QP.
    pub(super) fn fail_head(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, status: WcStatus) {
        if let Some(wqe) = core.sq.pop() {
            core.complete_send(cx, &wqe, status);
        }
        core.fail();
    }

    /// PSNs that the window still admits.
    fn room(&self, core: &QpCore, cx: &Cx<'_>) -> u32 {
        let mtu = u64::from(core.mtu());
        let in_flight = self.next.diff(self.una) as u32;
        let packets = match (core.limits.window, core.limits.path) {
            (Some(window), _) => (u64::from(window) / mtu).saturating_sub(u64::from(in_flight)),
            (None, Some(path)) => {
                // Packets of this turn are not charged yet.
                let uncharged = (u64::from(in_flight) * mtu).saturating_sub(self.charged);
                let room = cx.paths.room(path).saturating_sub(uncharged) / mtu;
                if core.limits.called || !cx.paths.has_line(path, false) { room } else { 0 }
            }
            (None, None) => 0,
        };
        let controlled = core.limits.pacer.window_bytes();
        let packets = if controlled == u64::MAX {
            packets
        } else {
            packets.min((controlled / mtu).saturating_sub(in_flight.into()))
        };
        let idle = in_flight == 0
            && core
                .limits
                .path
                .is_none_or(|path| core.limits.window.is_some() || cx.paths.is_idle(path));
        let room = u32::try_from(packets).unwrap_or(u32::MAX).max(u32::from(idle));
        room.min(MAX_IN_FLIGHT.saturating_sub(in_flight))
    }

    /// Which window is too full for this many PSNs.
    fn full(&self, core: &QpCore, psns: u32) -> Progress {
        let own = core.limits.pacer.window_bytes();
        let wanted = self.in_flight_bytes(core) + u64::from(psns) * u64::from(core.mtu());
        let is_own = core.limits.window.is_some() || wanted > own;
        if is_own { Progress::WindowFull } else { Progress::PathFull }
    }

    pub(super) fn in_flight_bytes(&self, core: &QpCore) -> u64 {
        self.next.diff(self.una).max(0) as u64 * u64::from(core.mtu())
    }

    fn request_header(&self, core: &QpCore, wqe: &Wqe, k: u32) -> HeaderBuf {
        let opcode = match wqe.op {
            SendOp::CompareSwap { .. } => Opcode::RC_CMP_SWAP,
            SendOp::FetchAdd { .. } => Opcode::RC_FETCH_ADD,
            _ => Opcode::RC_READ_REQ,
        };
        let mut bth = core.bth(Opcode(SERVICE | opcode.0), self.next);
        bth.ack_req = true;
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let mut header = HeaderBuf::new(&bth);
        if SERVICE == outbound::XRC {
            outbound::address(core, &mut header, self.cursor);
        }
        let atomic = |remote: Remote, swap_or_add, compare| AtomicEth {
            va: remote.addr,
            rkey: core.remote_key(remote.rkey),
            swap_or_add,
            compare,
        };
        match wqe.op {
            SendOp::CompareSwap { remote, compare, swap } => {
                header.push(|bytes| atomic(remote, swap, compare).emit(bytes));
            }
            SendOp::FetchAdd { remote, add } => {
                header.push(|bytes| atomic(remote, add, 0).emit(bytes));
            }
            SendOp::Read(remote) => {
                let mtu = core.mtu();
                let offset = k * mtu;
                let len = (read_piece(core, wqe, k) * mtu).min(wqe.len - offset);
                let va = remote.addr.wrapping_add(u64::from(offset));
                header
                    .push(|bytes| Reth { va, rkey: core.remote_key(remote.rkey), len }.emit(bytes));
            }
            _ => {}
        }
        header
    }

    /// Accounts for a packet that has just been sent.
    fn sent(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, wqe: &Wqe, psns: u32, answered: bool) {
        if self.una == self.sent_end {
            self.progress_at = cx.now;
        }
        if self.next.before(self.sent_end) {
            cx.counters.retransmitted_packets += 1;
            core.counters.retransmitted_packets += 1;
        } else if answered {
            self.rtt.on_sent(cx.now, self.next.add(psns));
        }
        self.next = self.next.add(psns);
        if self.next.after(self.sent_end) {
            self.sent_end = self.next;
        }
        if wqe.wants_response() {
            self.reads.push_back(self.next);
        }
        if self.next == wqe.end_psn() {
            self.cursor += 1;
        }
        if self.deadline == Time::NEVER {
            self.restart_timer(core, cx);
        }
    }

    /// Restarts the retransmission timer, or stops it if nothing is outstanding. A wait for the
    /// pacer, the window or an RNR timer does not count as silence of the peer.
    pub(super) fn restart_timer(&mut self, core: &QpCore, cx: &Cx<'_>) {
        // IBTA 11.2.5.2: 4.096 µs times 2 to the power of the attribute; 0 waits for ever.
        self.deadline = match core.attrs.timeout {
            0 => Time::NEVER,
            _ if self.una == self.next => Time::NEVER,
            t => cx.now.plus_nanos(self.rtt.stretch(4096 << t.min(31))),
        };
    }

    /// Retransmits what was lost, and reports the loss to the rate controller.
    pub(super) fn recover(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, timeout: bool) {
        if core.limits.pacer.is_controlled() {
            let (now, bytes) = (cx.now, self.in_flight_bytes(core));
            let lost = Lost { bytes, timeout };
            core.limits.pacer.tell(now, |controller| controller.on_lost(now, &lost));
        }
        self.go_back(core, cx);
    }

    /// Goes back to the first unacknowledged PSN and retransmits everything from there.
    pub(super) fn go_back(&mut self, core: &QpCore, cx: &mut Cx<'_>) {
        self.next = self.una;
        self.cursor = core.sq.head();
        self.reads.clear();
        if let Some(reach) = core.reach() {
            reach.copied.set(0);
        }
        self.since_ack_req = 0;
        self.deadline = Time::NEVER;
        self.rtt.on_resent();
        self.update_charge(core, cx);
    }

    /// Retransmits what is not acknowledged, because its owner expects a response by now. The timer
    /// goes on, and no retry is counted, so that a dead peer is not detected later than without.
    pub(super) fn resend(&mut self, core: &QpCore, cx: &mut Cx<'_>) {
        if self.next != self.una && self.rnr_until.is_none() {
            let deadline = self.deadline;
            self.go_back(core, cx);
            self.deadline = deadline;
        }
    }

    /// Resends the PSN before the first unacknowledged one, as an empty WRITE: the peer has seen
    /// that PSN, or expects the next, and acknowledges it once more. What the original was does not
    /// matter, since a duplicate is not carried out.
    pub(super) fn probe(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, sink: &mut Sink<'_>) {
        self.probing = true;
        let mut bth = core.bth(Opcode(SERVICE | Opcode::RC_WRITE_ONLY.0), self.una.sub(1));
        bth.ack_req = true;
        let mut header = HeaderBuf::new(&bth);
        header.push(|bytes| Reth { va: 0, rkey: 0, len: 0 }.emit(bytes));
        cx.segments.clear();
        let ecn = core.data_ecn();
        sink.send(core, cx, &header, ecn);
    }

    /// Uses up a retry; with none left, the path has failed.
    pub(super) fn consume_retry(&mut self, core: &mut QpCore) -> bool {
        match self.retries_left.checked_sub(1) {
            Some(left) => {
                self.retries_left = left;
                true
            }
            None => {
                core.give_up_path();
                false
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        if let Some(until) = self.rnr_until {
            if until <= cx.now {
                self.rnr_until = None;
            }
            return;
        }
        if self.deadline > cx.now {
            return;
        }
        cx.counters.timeouts += 1;
        core.counters.timeouts += 1;
        self.gap_at = None;
        if self.consume_retry(core) {
            self.recover(core, cx, true);
        }
    }

    /// Updates the in-flight bytes charged to the path.
    pub(super) fn update_charge(&mut self, core: &QpCore, cx: &mut Cx<'_>) {
        let in_flight = self.next.diff(self.una).max(0) as u64;
        let charge = match core.limits.window {
            Some(_) => 0,
            None => in_flight * u64::from(core.mtu()),
        };
        if let Some(path) = core.limits.path
            && charge != self.charged
        {
            cx.paths.charge(path, self.charged, charge);
            self.charged = charge;
        }
    }

    /// The QP leaves its path: releases its in-flight bytes there.
    pub(super) fn release_charge(&mut self, core: &QpCore, paths: &mut PathTable) {
        if let Some(path) = core.limits.path {
            paths.charge(path, core::mem::take(&mut self.charged), 0);
        }
    }

    /// Forgets what applies to one path only: everything unacknowledged will be retransmitted.
    pub(super) fn suspend(&mut self, core: &QpCore, cx: &mut Cx<'_>) {
        self.go_back(core, cx);
        self.retries_left = core.attrs.retry_count;
        self.rnr_retries_left = core.attrs.rnr_retry;
        self.rnr_until = None;
        self.gap_at = None;
        self.rtt = RttEstimate::default();
    }

    pub(super) fn abort(&mut self, core: &QpCore, cx: &mut Cx<'_>) {
        self.una = self.next;
        self.sent_end = self.next;
        self.cursor = core.sq.tail();
        self.started = self.cursor;
        self.reads.clear();
        self.deadline = Time::NEVER;
        self.rnr_until = None;
        self.rtt = RttEstimate::default();
        self.update_charge(core, cx);
    }
}

/// PSNs of the piece of a READ that starts at its packet `k`.
fn read_piece(core: &QpCore, wqe: &Wqe, k: u32) -> u32 {
    let pairs = SHORT_READ.contains(&wqe.packets) && core.attrs.max_rd_atomic >= MANY_READS;
    let piece = if pairs { 2 } else { READ_PIECE / core.mtu() };
    (piece - k % piece).min(wqe.packets - k)
}
