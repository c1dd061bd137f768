//! Connects the engine with the NIC.

use bowline_codes::reduce;
use bowline_nic::{
    Completion, MrKey, Payload, RecvWr, Rnic, SendFlags, SendOp, SendWr, Sge, Time, WcOpcode,
    WcStatus,
};
use bowline_sdr::Source;

use super::{Group, express};
use crate::engine::{FoldTerm, OpId, Post};
use crate::schedule::{Action, Span, Transform};
use crate::{Contribution, Rank, fold, fold_partial};

/// Folds and copies of up to this many bytes are made in one turn. Then the messages that they made
/// ready should leave, and arrived messages should be taken.
const TURN_BYTES: usize = 256 << 10;

/// The purpose of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrKind {
    Send,
    Recv,
    ExpressSend,
    ExpressRecv,
}

/// The identifier of a work request.
pub(super) fn wr_id(kind: WrKind, peer: Rank, slot: u16) -> u64 {
    u64::from(peer) << 32 | u64::from(slot) << 2 | kind as u64
}

/// Parses what [`wr_id`] made.
fn parse_wr_id(id: u64) -> (WrKind, Rank, u16) {
    let kind = match id & 3 {
        0 => WrKind::Send,
        1 => WrKind::Recv,
        2 => WrKind::ExpressSend,
        _ => WrKind::ExpressRecv,
    };
    (kind, (id >> 32) as Rank, (id >> 2) as u16)
}

impl Group {
    /// Takes completions from the NIC and does what is due. Returns whether there was anything.
    pub fn drive(&mut self, nic: &mut dyn Rnic, now: Time) -> bool {
        let mut did = false;
        let mut completions = [Completion::default(); 32];
        // Polling cannot fail: the queue is ours.
        while let Ok(count @ 1..) = nic.poll_cq(self.cq, &mut completions) {
            for completion in &completions[..count] {
                self.take(nic, now, completion);
            }
            did = true;
        }
        if self.config.scheme.is_some() {
            did |= self.drive_sdr(nic, now);
        }
        if self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.timeout(now);
        }
        let mut moved = 0;
        self.busy = false;
        while let Some(post) = self.engine.poll_post() {
            did = true;
            match post {
                Post::Write { to, slot, op, src, imm, inline } => {
                    self.write(nic, now, (to, slot), (op, src), imm, inline);
                    moved += if self.reaches(to) { src.len } else { 0 };
                }
                Post::Note { to, imm } => self.note(nic, now, to, imm),
                Post::Express { to, slot, op, src, imm, deadline } => {
                    self.send_express(nic, now, (to, slot), (op, src), imm, deadline);
                }
                Post::Repair { to, slot, offset, op, src, imm } => {
                    self.repair(nic, now, (to, slot, offset), (op, src), imm);
                }
                Post::Bulk { to, slot, offset, op, src, imm } => {
                    self.send_bulk(nic, now, (to, slot, offset), (op, src), imm);
                }
                Post::Nack { to, slot, imm } => self.request(nic, now, to, slot, imm),
                Post::Resend { to } => self.resend(nic, now, to),
                Post::Open { from, slot } => self.open(nic, now, from, slot),
                Post::End { from, slot, at } => self.end(nic, now, from, slot, at),
                Post::Fold { op, step } => moved += self.fold(nic, now, op, step),
            }
            if moved >= TURN_BYTES {
                self.busy = true;
                return true;
            }
        }
        did
    }

    fn take(&mut self, nic: &mut dyn Rnic, now: Time, completion: &Completion) {
        let (kind, peer, slot) = parse_wr_id(completion.wr_id);
        if completion.status != WcStatus::Success {
            return self.engine.broken(now, peer);
        }
        match kind {
            WrKind::Send => self.engine.sent(now, peer),
            WrKind::Recv => self.take_message(nic, now, peer, completion),
            WrKind::ExpressSend if slot >= express::first_repair_slot(&self.config) => {
                self.engine.bulk_sent(now, peer);
            }
            WrKind::ExpressSend => self.engine.express_sent(now, peer),
            WrKind::ExpressRecv => self.take_express(nic, now, (peer, slot), completion),
        }
    }

    fn take_message(&mut self, nic: &mut dyn Rnic, now: Time, peer: Rank, completion: &Completion) {
        let Some((qpn, _)) = self.source(peer) else { return };
        // This fails only if there is no room, and then no receive is missing: the queue held as
        // many before.
        let _ = nic.post_recv(qpn, &RecvWr::new(wr_id(WrKind::Recv, peer, 0), &[]));
        // A peer may send an operation that no member of a group sends. It has no slot then.
        let is_write = completion.opcode == WcOpcode::RecvWriteImm;
        match completion.imm {
            Some(imm) if is_write && let Some(slot) = self.engine.nack_slot(imm) => {
                self.take_nack(now, peer, imm, slot);
            }
            Some(imm) => {
                let len = match is_write {
                    true => completion.byte_len as usize,
                    false => self.shared_len(peer, imm),
                };
                self.engine.message(now, peer, imm, len);
            }
            None => self.engine.broken(now, peer),
        }
    }

    fn write(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (to, slot): (Rank, u16),
        (op, src): (OpId, Span),
        imm: u32,
        inline: bool,
    ) {
        let Some((qpn, to_slot)) = self.target(to, slot) else {
            return self.engine.give_up(now);
        };
        let Some(sge) = self.sge(op, src) else {
            return self.engine.give_up(now);
        };
        if self.reaches(to) {
            return self.write_shared(nic, now, (to, slot), sge, imm);
        }
        if let Some(sdr) = self.sdr_mut(to) {
            let source = Source { key: MrKey(sge.lkey), addr: sge.addr };
            return sdr.write(nic, now, source, sge.len, imm);
        }
        let wr = SendWr::new(wr_id(WrKind::Send, to, 0), SendOp::WriteImm(to_slot, imm), &[]);
        let posted = if inline {
            // The work request holds a copy.
            nic.with_slices(self.pd, &[sge], &[], |reads, _| reads[0].to_vec())
                .map_err(drop)
                .and_then(|bytes| {
                    let payload = Payload::Inline(&bytes);
                    nic.post_send(now, qpn, &SendWr { payload, ..wr }).map_err(drop)
                })
        } else {
            let sges = [sge];
            let wr = SendWr { payload: Payload::Sges(&sges), ..wr };
            nic.post_send(now, qpn, &wr).map_err(drop)
        };
        if posted.is_err() {
            // A queue pair in the error state has reported that with a completion, or will.
            self.engine.broken(now, to);
        }
    }

    pub(super) fn note(&mut self, nic: &mut dyn Rnic, now: Time, to: Rank, imm: u32) {
        // The news that the group has failed need not wait for messages in flight.
        if !self.engine.is_abort(imm)
            && let Some(sdr) = self.sdr_mut(to)
        {
            return sdr.note(nic, now, imm);
        }
        let Some((link, _)) = self.remote(to) else {
            return self.engine.broken(now, to);
        };
        let wr = SendWr::new(wr_id(WrKind::Send, to, 0), SendOp::SendImm(imm), &[]);
        let wr = SendWr { flags: SendFlags::SIGNALED, ..wr };
        if nic.post_send(now, link.qpn, &wr).is_err() {
            self.engine.broken(now, to);
        }
    }

    pub(super) fn remote(&self, to: Rank) -> Option<(&super::Link, &super::LinkInfo)> {
        let link = self.links.get(to as usize)?.as_ref()?;
        Some((link, link.remote.as_ref()?))
    }

    /// Computes a fold. Returns how many bytes it has read.
    fn fold(&mut self, nic: &mut dyn Rnic, now: Time, op: OpId, step: u32) -> usize {
        let done = match self.engine.schedule(op).map(|schedule| schedule.action(step).clone()) {
            Some(Action::Transform { dst, src, how }) => self.transform(nic, op, (dst, src), how),
            _ => self.compute(nic, op, step),
        };
        match done {
            Some(bytes) => {
                self.engine.folded(op, step);
                bytes
            }
            None => {
                self.engine.give_up(now);
                0
            }
        }
    }

    fn transform(
        &self,
        nic: &mut dyn Rnic,
        op: OpId,
        (dst, src): (Span, Span),
        how: Transform,
    ) -> Option<usize> {
        let (to, from, seed) = (self.sge(op, dst)?, self.sge(op, src)?, self.engine.seed(op)?);
        let done = nic.with_slices(self.pd, &[from], &[to], |reads, writes| {
            how.encoding.transform(seed, how.group, how.is_back, reads[0], writes[0]);
        });
        done.ok().map(|()| src.len)
    }

    fn compute(&self, nic: &mut dyn Rnic, op: OpId, step: u32) -> Option<usize> {
        let schedule = self.engine.schedule(op)?;
        let (how, dtype, ranks) = (schedule.reduce_op(), schedule.data_type(), schedule.ranks());
        let (dst, terms, finish) = self.engine.fold(op, step);
        let terms: Vec<_> = terms.collect();
        let to = self.sge(op, dst)?;
        if dst.len == 0 {
            return Some(0);
        }
        let term_count = terms.len();
        let mut sges = Vec::new();
        let mut holes: Vec<&[_]> = Vec::new();
        for term in terms.into_iter().filter(|term| *term != FoldTerm::Absent) {
            sges.push(self.term_sge(op, term, dst.len)?);
            holes.push(if let FoldTerm::Slot { missing, .. } = term { missing } else { &[] });
        }
        // In place, one term is the destination itself, so it is not passed as a separate source.
        let is_own = |sge: &Sge| sge.addr == to.addr && sge.lkey == to.lkey;
        let reads: Vec<_> = sges.iter().filter(|sge| !is_own(sge)).copied().collect();
        let bytes = dst.len * sges.len();
        let is_partial = sges.len() < term_count || holes.iter().any(|holes| !holes.is_empty());
        let done = nic.with_slices(self.pd, &reads, &[to], |reads, writes| {
            let mut reads = reads.iter();
            let of = |sge: &Sge| if is_own(sge) { None } else { reads.next().copied() };
            let terms: Vec<_> = sges.iter().map(of).collect();
            if is_partial {
                let each = terms.into_iter().zip(&holes);
                let each = each.map(|(bytes, missing)| Contribution { bytes, missing });
                // Terms of a fold that ends a reduction are for equally many ranks.
                let each_for = finish.then(|| u64::from(ranks) / term_count as u64);
                fold_partial(how, dtype, writes[0], &each.collect::<Vec<_>>(), each_for);
                return;
            }
            fold(how, dtype, writes[0], &terms);
            if finish {
                reduce::finish(how, dtype, writes[0], ranks.into());
            }
        });
        done.ok().map(|()| bytes)
    }
}
