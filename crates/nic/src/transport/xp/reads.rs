//! READs: one at a time in each direction, until the deadline that the requester sent along.

use bowline_wire::{Opcode, PacketView, Psn, Reth, XpEth, XpTimeLeft};

use super::arrivals::Arrivals;
use super::layout::Layout;
use super::loss::LossRecord;
use super::requester::MAX_HEADERS;
use super::responder::check_fragment;
use super::{Xp, before, first_number};
use crate::memory::AccessDenied;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::Wqe;
use crate::time::Time;
use crate::train::Train;
use crate::transport::outbound;
use crate::tx::{HeaderBuf, pad_of};
use crate::types::{Access, EndMark, Remote, SendOp, WcStatus};

/// The READ at the head of the send queue, which waits for its response.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// READs before it.
    count: u32,
    arrivals: Arrivals,
    bits: Vec<u64>,
    has_last: bool,
}

/// The peer's READ that is being answered.
#[derive(Debug, Default)]
pub(super) struct Serving {
    read: Option<Read>,
    /// Number of the latest accepted request.
    last: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    seq: u32,
    remote: Remote,
    layout: Layout,
    /// Next fragment to be sent.
    next: u32,
    deadline: Time,
}

impl Serving {
    pub(super) fn is_busy(&self) -> bool {
        self.read.is_some()
    }

    pub(super) fn stop(&mut self) {
        self.read = None;
    }
}

/// As requester.
impl Xp {
    /// Whether the oldest request is a READ.
    pub(super) fn is_reading(&self, core: &QpCore) -> bool {
        core.sq.get(core.sq.head()).is_some_and(|wqe| matches!(wqe.op, SendOp::Read(_)))
    }

    fn read_seq(&self, core: &QpCore) -> u32 {
        let count = self.more.as_ref().map_or(0, |more| more.reading.count);
        first_number(core.attrs.sq_psn).wrapping_add(count)
    }

    pub(super) fn send_read_request(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        wqe: &Wqe,
        remote: Remote,
    ) {
        let timing = core.sq.timing(core.sq.head());
        let left_us = match timing.deadline {
            Time::NEVER => 0,
            deadline => deadline.nanos_since(cx.now).div_ceil(1_000).clamp(1, u32::MAX.into()),
        };
        let eth = XpEth {
            wqe_seq: self.read_seq(core),
            recv_seq: 0,
            len: wqe.len,
            stride_log2: timing.stride_log2,
            token: core.attrs.sq_psn,
        };
        let reth = Reth { va: remote.addr, rkey: remote.rkey, len: wqe.len };
        let mut header = HeaderBuf::new(&core.bth(Opcode::XP_READ_REQ, Psn::new(0)));
        header.push(|bytes| eth.emit(bytes));
        header.push(|bytes| reth.emit(bytes));
        header.push(|bytes| XpTimeLeft(left_us as u32).emit(bytes));
        cx.segments.clear();
        let ecn = core.data_ecn();
        sink.send(core, cx, &header, ecn);
        self.next_packet = 1;
        // The response needs state to track it.
        self.more();
    }

    /// Handles a fragment of a response; returns whether the READ has ended.
    pub(super) fn receive_read_response(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        eth: &XpEth,
    ) -> bool {
        let number = core.sq.head();
        let wqe = core.sq.get(number).copied().filter(|wqe| matches!(wqe.op, SendOp::Read(_)));
        let expected = self.next_packet > 0 && eth.wqe_seq == self.read_seq(core);
        let Some(wqe) = wqe.filter(|_| expected) else {
            cx.counters.drop_late += 1;
            return false;
        };
        let agrees = wqe.len == eth.len && core.sq.timing(number).stride_log2 == eth.stride_log2;
        let layout = check_fragment(core.mtu(), packet, eth).filter(|_| agrees);
        let (Some(layout), Some(more)) = (layout, &mut self.more) else {
            cx.counters.drop_malformed += 1;
            return false;
        };
        let (k, fragments, reading) = (packet.psn().get(), layout.fragments(), &mut more.reading);
        if reading.arrivals.has(&reading.bits, k) {
            cx.counters.duplicates += 1;
            return false;
        }
        let (sges, pd) = (core.sq.sges(number), core.init.pd);
        let is_last = packet.info().position.ends();
        let whole = reading.arrivals.completes(&reading.bits, k, fragments);
        let ends = whole || (is_last && more.grace_ns == 0);
        let placed = layout.try_pieces(k, |offset, from, len| {
            cx.memory.scatter(pd, sges, offset, &packet.payload()[from..from + len], ends)
        });
        if placed.is_err() {
            self.fail_request(core, cx, WcStatus::LocProtErr);
            return true;
        }
        cx.counters.rx_message_bytes += packet.payload().len() as u64;
        reading.arrivals.mark(&mut reading.bits, k, fragments);
        reading.has_last |= is_last;
        if ends {
            self.end_read(core, cx, &wqe, if whole { EndMark::Whole } else { EndMark::Last });
        } else if is_last {
            let deadline = cx.now.plus_nanos(more.grace_ns);
            core.sq.hasten(number, deadline);
            self.wake = self.wake.min(deadline);
        }
        ends
    }

    /// Handles fragments of a response, before its last one, until one needs the slow path. Returns
    /// how many.
    pub(super) fn receive_answers(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        train: &mut Train<'_>,
        eth: &XpEth,
    ) -> u32 {
        let number = core.sq.head();
        let expected = self.next_packet > 0 && eth.wqe_seq == self.read_seq(core);
        let (Some(wqe), Some(more)) = (core.sq.get(number), &mut self.more) else { return 0 };
        let stride_log2 = core.sq.timing(number).stride_log2;
        let layout = Layout { mtu: core.mtu(), len: wqe.len, stride_log2 };
        let agrees = layout.len == eth.len && stride_log2 == eth.stride_log2;
        let (first, last) = (train.psn().get(), layout.fragments() - 1);
        // A fragment that may complete the READ is handled as a single frame.
        let goes_on = expected && first < last && !more.reading.has_last;
        let is_read = matches!(wqe.op, SendOp::Read(_));
        if !is_read || !agrees || !goes_on || train.payload_len() != layout.mtu as usize {
            return 0;
        }
        let (sges, pd, reading) = (core.sq.sges(number), core.init.pd, &mut more.reading);
        if cx.memory.check_local(pd, sges, true).is_err() {
            return 0;
        }
        train.limit(last - first);
        let mut k = first;
        while let Some(bytes) = train.next() {
            if reading.arrivals.has(&reading.bits, k) {
                cx.counters.duplicates += 1;
            } else {
                // The list was checked, and cannot change in between.
                let placed = layout.try_pieces(k, |offset, from, len| {
                    cx.memory.scatter(pd, sges, offset, &bytes[from..from + len], false)
                });
                if placed.is_ok() {
                    cx.counters.rx_message_bytes += u64::from(layout.mtu);
                    reading.arrivals.mark(&mut reading.bits, k, last + 1);
                }
            }
            k += 1;
        }
        k - first
    }

    /// Ends the READ at the head of the queue, with what has arrived.
    pub(super) fn end_read(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, wqe: &Wqe, end: EndMark) {
        cx.memory.settle();
        let stride_log2 = core.sq.timing(core.sq.head()).stride_log2;
        let layout = Layout { mtu: core.mtu(), len: wqe.len, stride_log2 };
        let (mut bytes, mut end) = (0, end);
        if let Some(more) = self.more.as_mut().filter(|_| self.next_packet > 0) {
            let Reading { arrivals, bits, has_last, .. } = &more.reading;
            bytes = arrivals.bytes(bits, &layout);
            if *has_last && end == EndMark::Deadline {
                end = EndMark::Last;
            }
            if end != EndMark::Whole && more.log.is_on() {
                more.log.push(LossRecord::new(wqe.wr_id, &layout, |k| arrivals.has(bits, k)));
            }
        }
        self.pop_request(core);
        core.complete_send_in_part(cx, wqe, bytes, end);
    }

    /// Responses to the READ that was at the head of the queue now come too late.
    pub(super) fn end_reading(&mut self) {
        let reading = &mut self.more().reading;
        reading.count = reading.count.wrapping_add(1);
        reading.arrivals = Arrivals::default();
        reading.has_last = false;
    }
}

/// As responder.
impl Xp {
    /// Handles a request; returns whether there is something to send.
    pub(super) fn receive_read_request(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        eth: &XpEth,
    ) -> bool {
        let (Some(reth), Some(left)) = (packet.reth(), packet.xp_time_left()) else { return false };
        let first = first_number(core.attrs.rq_psn);
        let last = self.more.as_ref().and_then(|more| more.serving.last);
        if !before(last.unwrap_or(first.wrapping_sub(1)), eth.wqe_seq) {
            cx.counters.drop_late += 1;
            return false;
        }
        let layout = Layout::new(core.mtu(), eth.len, eth.stride_log2)
            .filter(|layout| layout.fragments() <= super::MAX_PSNS && reth.len == eth.len);
        let Some(layout) = layout else {
            cx.counters.drop_malformed += 1;
            return false;
        };
        let (peer, right) = (core.peer(), Access::REMOTE_READ);
        let allowed = core.attrs.access.contains(right)
            && (reth.len == 0
                || cx.memory.check_remote(peer, reth.rkey, reth.va, reth.len, right).is_ok());
        let deadline = match left.0 {
            0 => Time::NEVER,
            us => cx.now.plus_nanos(u64::from(us) * 1_000),
        };
        let remote = Remote { addr: reth.va, rkey: reth.rkey };
        let read = Read { seq: eth.wqe_seq, remote, layout, next: 0, deadline };
        let serving = &mut self.more().serving;
        serving.last = Some(eth.wqe_seq);
        // Even if the peer may not read this, it no longer waits for its previous request.
        serving.read = allowed.then_some(read);
        cx.counters.access_violations += u64::from(!allowed);
        allowed
    }

    /// Sends up to `budget` packets of the current response; returns how many, and why it stopped.
    pub(super) fn transmit_answers(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> (u32, Progress) {
        let mut sent = 0;
        while let Some(room) = self.answer_room(core) {
            let Some(more) = &mut self.more else { break };
            let Some(read) = &mut more.serving.read else { break };
            if read.deadline <= cx.now {
                more.serving.read = None;
                break;
            }
            if sent >= budget {
                return (sent, Progress::More);
            }
            if core.limits.pacer.next() > cx.now {
                return (sent, Progress::Paced);
            }
            if room == 0 {
                return (sent, Progress::WindowFull);
            }
            if !sink.has_room() {
                return (sent, Progress::More);
            }
            let before = core.counters.tx_bytes;
            let most = room.min(budget - sent);
            let Ok(packets) = send_answer(core, cx, sink, read, most) else {
                // The region is gone.
                cx.counters.access_violations += 1;
                more.serving.read = None;
                break;
            };
            sent += packets;
            read.next += packets;
            if read.next == read.layout.fragments() {
                more.serving.read = None;
            }
            self.count_sent(core.counters.tx_bytes - before);
        }
        (sent, Progress::Idle)
    }

    /// Packets that the window admits, if a response is in progress.
    fn answer_room(&self, core: &QpCore) -> Option<u32> {
        let is_busy = self.more.as_ref().is_some_and(|more| more.serving.is_busy());
        is_busy.then(|| self.window_packets(core, core.mtu() + MAX_HEADERS))
    }

    /// Unsent bytes of the current response.
    pub(super) fn unanswered_bytes(&self) -> u64 {
        let read = self.more.as_ref().and_then(|more| more.serving.read.as_ref());
        read.map_or(0, |Read { layout, next, .. }| {
            u64::from(layout.len).saturating_sub(u64::from(*next) * u64::from(layout.mtu))
        })
    }
}

/// Sends a fragment of a response, or a run of them, at most `most`; returns how many.
fn send_answer(
    core: &mut QpCore,
    cx: &mut Cx<'_>,
    sink: &mut Sink<'_>,
    read: &Read,
    most: u32,
) -> Result<u32, AccessDenied> {
    let Read { seq, remote, layout, next: k, .. } = *read;
    let last = layout.fragments() - 1;
    let opcode = if k == last { Opcode::XP_READ_RESP_LAST } else { Opcode::XP_READ_RESP_MID };
    let mut bth = core.bth(opcode, Psn::new(k));
    bth.pad = pad_of(layout.len_of(k) as usize);
    let eth = XpEth {
        wqe_seq: seq,
        recv_seq: 0,
        len: layout.len,
        stride_log2: layout.stride_log2,
        token: core.attrs.sq_psn,
    };
    let mut header = HeaderBuf::new(&bth);
    header.push(|bytes| eth.emit(bytes));
    let (ecn, peer) = (core.data_ecn(), core.peer());
    let at = |offset: u32| remote.addr.wrapping_add(offset.into());
    cx.segments.clear();
    if layout.is_contiguous() {
        let packets = outbound::run_len(core, cx, sink, &header, layout.mtu, most.min(last - k));
        if packets > 1 {
            let len = packets * layout.mtu;
            cx.segments.push(cx.memory.remote_read(peer, remote.rkey, at(k * layout.mtu), len)?);
            sink.send_run(core, cx, &header, ecn, layout.mtu);
            return Ok(packets);
        }
    }
    layout.try_pieces(k, |offset, _, len| {
        if len > 0 {
            cx.segments.push(cx.memory.remote_read(peer, remote.rkey, at(offset), len as u32)?);
        }
        Ok(())
    })?;
    sink.send(core, cx, &header, ecn);
    Ok(1)
}
