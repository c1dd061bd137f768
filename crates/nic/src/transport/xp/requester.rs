//! Sends requests, each until all of it is sent or its deadline has passed.

use bowline_wire::{ICRC_LEN, ImmDt, Opcode, Psn, Reth, XpEth};

use super::Xp;
use super::layout::Layout;
use crate::memory::AccessDenied;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::Wqe;
use crate::transport::{local, outbound};
use crate::tx::{HeaderBuf, MAX_HEADER, pad_of};
use crate::types::{EndMark, QpState, SendFlags, SendOp, WcStatus};

/// Bytes of a packet besides its payload, at most.
pub(super) const MAX_HEADERS: u32 = (MAX_HEADER + ICRC_LEN) as u32;

impl Xp {
    /// Whether there is a request to start or continue.
    pub(super) fn has_requests(&self, core: &QpCore) -> bool {
        let started = self.next_packet > 0;
        let awaits = started && self.is_reading(core);
        match core.state {
            QpState::Rts => !core.sq.is_empty() && !awaits,
            QpState::Sqd => started && !awaits,
            _ => false,
        }
    }

    pub(super) fn transmit_requests(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        let mut left = budget;
        while left > 0 {
            if !self.has_requests(core) {
                return Progress::Idle;
            }
            let number = core.sq.head();
            let Some(wqe) = core.sq.get(number).copied() else { return Progress::Idle };
            if wqe.executed {
                // It has completed at its deadline.
                self.pop_request(core);
                continue;
            }
            if wqe.op.is_local() {
                if local::execute(core, cx, &wqe.op).is_err() {
                    self.fail_request(core, cx, WcStatus::MwBindErr);
                    return Progress::Idle;
                }
                self.pop_request(core);
                core.complete_send(cx, &wqe, WcStatus::Success);
                continue;
            }
            if core.limits.pacer.next() > cx.now {
                return Progress::Paced;
            }
            if !sink.has_room() {
                return Progress::More;
            }
            let room = self.window_packets(core, core.mtu() + MAX_HEADERS);
            if room == 0 {
                return Progress::WindowFull;
            }
            let before = core.counters.tx_bytes;
            if let SendOp::Read(remote) = wqe.op {
                self.send_read_request(core, cx, sink, &wqe, remote);
                self.count_sent(core.counters.tx_bytes - before);
                left -= 1;
                continue;
            }
            let most = left.min(room);
            let Ok(sent) = self.send_fragments(core, cx, sink, number, &wqe, most) else {
                self.fail_request(core, cx, WcStatus::LocProtErr);
                return Progress::Idle;
            };
            left -= sent;
            self.count_sent(core.counters.tx_bytes - before);
            self.next_packet += sent;
            if self.next_packet == outbound::packets_of(wqe.len, core.mtu()) {
                self.pop_request(core);
                core.complete_send_in_part(cx, &wqe, wqe.len, EndMark::Whole);
            }
        }
        Progress::More
    }

    /// Sends a fragment, or a run of them, at most `most`; returns how many.
    fn send_fragments(
        &self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        number: u64,
        wqe: &Wqe,
        most: u32,
    ) -> Result<u32, AccessDenied> {
        let stride_log2 = core.sq.timing(number).stride_log2;
        let layout = Layout { mtu: core.mtu(), len: wqe.len, stride_log2 };
        let (k, last) = (self.next_packet, layout.fragments() - 1);
        let header = self.header(core, wqe, &layout, k);
        let ecn = core.data_ecn();
        if layout.is_contiguous() {
            let packets =
                outbound::run_len(core, cx, sink, &header, layout.mtu, most.min(last - k));
            let len = packets * layout.mtu;
            if packets > 1
                && outbound::payload(core, cx, number, wqe, k * layout.mtu, len).is_ok()
                && cx.segments.len() == 1
            {
                sink.send_run(core, cx, &header, ecn, layout.mtu);
                return Ok(packets);
            }
        }
        gather(core, cx, number, wqe, &layout, k)?;
        sink.send(core, cx, &header, ecn);
        Ok(1)
    }

    fn header(&self, core: &QpCore, wqe: &Wqe, layout: &Layout, k: u32) -> HeaderBuf {
        let last = k + 1 == layout.fragments();
        let (first_opcode, reth, imm) = match wqe.op {
            SendOp::SendImm(imm) => (Opcode::XP_SEND_MIDDLE_IMM, None, Some(imm)),
            SendOp::Write(remote) => (Opcode::XP_WRITE_MIDDLE, Some(remote), None),
            SendOp::WriteImm(remote, imm) => (Opcode::XP_WRITE_MIDDLE_IMM, Some(remote), Some(imm)),
            _ => (Opcode::XP_SEND_MIDDLE, None, None),
        };
        // The opcode of a last packet follows that of the middle packet.
        let opcode = Opcode(first_opcode.0 + u8::from(last));
        let mut bth = core.bth(opcode, Psn::new(k));
        bth.pad = pad_of(layout.len_of(k) as usize);
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let eth = XpEth {
            wqe_seq: self.next_seq,
            recv_seq: self.next_recv,
            len: wqe.len,
            stride_log2: layout.stride_log2,
            token: core.attrs.sq_psn,
        };
        let mut header = HeaderBuf::new(&bth);
        header.push(|bytes| eth.emit(bytes));
        if let Some(remote) = reth {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, len: wqe.len };
            header.push(|bytes| reth.emit(bytes));
        }
        if let Some(imm) = imm {
            header.push(|bytes| ImmDt(imm).emit(bytes));
        }
        header
    }

    /// Takes the oldest request off the queue, with its numbers.
    pub(super) fn pop_request(&mut self, core: &mut QpCore) {
        self.next_packet = 0;
        let Some(wqe) = core.sq.pop() else { return };
        if let SendOp::Read(_) = wqe.op {
            self.end_reading();
            return;
        }
        if wqe.op.is_local() {
            return;
        }
        self.next_seq = self.next_seq.wrapping_add(1);
        self.next_recv = self.next_recv.wrapping_add(u32::from(wqe.is_two_sided()));
    }

    /// The oldest request fails for a local reason, and the send queue stops.
    pub(super) fn fail_request(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, status: WcStatus) {
        let wqe = core.sq.get(core.sq.head()).copied();
        self.pop_request(core);
        if let Some(wqe) = wqe {
            core.complete_send(cx, &wqe, status);
        }
        self.flush_requests(core, cx, WcStatus::WrFlushErr);
        core.fail_send_queue();
    }

    /// Ends requests that are due, and determines which is due next.
    pub(super) fn expire_requests(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let mut due: Vec<u64> = core::iter::from_fn(|| core.sq.pop_due(cx.now)).collect();
        due.sort_unstable();
        for number in due {
            let Some(wqe) = core.sq.get(number).copied().filter(|wqe| !wqe.executed) else {
                continue;
            };
            if number == core.sq.head() {
                self.end_oldest(core, cx, &wqe);
            } else {
                if let Some(wqe) = core.sq.get_mut(number) {
                    wqe.executed = true;
                }
                core.complete_send_in_part(cx, &wqe, 0, EndMark::Deadline);
            }
        }
        self.wake = self.wake.min(core.sq.next_deadline());
    }

    /// Ends the oldest request, whatever has been sent or read of it.
    fn end_oldest(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, wqe: &Wqe) {
        if let SendOp::Read(_) = wqe.op {
            return self.end_read(core, cx, wqe, EndMark::Deadline);
        }
        let sent = u64::from(self.next_packet) * u64::from(core.mtu());
        self.pop_request(core);
        core.complete_send_in_part(cx, wqe, sent as u32, EndMark::Deadline);
    }

    /// Completes all requests with an error.
    pub(super) fn flush_requests(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, status: WcStatus) {
        while let Some(wqe) = core.sq.get(core.sq.head()).copied() {
            self.pop_request(core);
            if !wqe.executed {
                core.complete_send(cx, &wqe, status);
            }
        }
        self.next_packet = 0;
    }
}

/// Gathers the payload of fragment `k` into `cx.segments`.
fn gather(
    core: &QpCore,
    cx: &mut Cx<'_>,
    number: u64,
    wqe: &Wqe,
    layout: &Layout,
    k: u32,
) -> Result<(), AccessDenied> {
    if layout.is_contiguous() {
        let offset = k * layout.mtu;
        return outbound::payload(core, cx, number, wqe, offset, layout.len_of(k));
    }
    cx.segments.clear();
    let (pd, sges) = (core.init.pd, core.sq.sges(number));
    layout.try_pieces(k, |offset, _, len| {
        if wqe.inline {
            let bytes = &core.sq.inline(number)[offset as usize..][..len];
            cx.segments.extend((len > 0).then(|| crate::memory::Segment::of_slice(bytes)));
            return Ok(());
        }
        cx.memory.gather(pd, sges, offset, len as u32, cx.segments)
    })
}
