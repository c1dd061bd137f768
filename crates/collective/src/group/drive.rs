//! Between the engine and the NIC.

use bowline_codes::reduce;
use bowline_nic::{
    Completion, Nic, Payload, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, Time, WcOpcode,
    WcStatus,
};

use super::Group;
use crate::engine::{OpId, Post};
use crate::schedule::Span;
use crate::{Rank, fold};

/// Folds of so many bytes are computed in one turn. What they have made ready to be sent should leave, and
/// what arrives should be taken.
const TURN_BYTES: usize = 256 << 10;

/// The identifier of a receive for a peer's message.
pub(super) fn recv_id(peer: Rank) -> u64 {
    u64::from(peer) << 1 | 1
}

/// The identifier of what is sent to a peer.
fn send_id(peer: Rank) -> u64 {
    u64::from(peer) << 1
}

fn rank_of(wr_id: u64) -> Rank {
    (wr_id >> 1) as Rank
}

impl Group {
    /// Takes what has happened on the NIC, and does what is next.
    pub fn drive(&mut self, nic: &mut Nic, now: Time) {
        let mut completions = [Completion::default(); 32];
        // The queue is ours.
        while let Ok(count @ 1..) = nic.poll_cq(self.cq, &mut completions) {
            for completion in &completions[..count] {
                self.take(nic, now, completion);
            }
        }
        if self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.timeout(now);
        }
        let mut folded = 0;
        self.busy = false;
        while let Some(post) = self.engine.poll_post() {
            match post {
                Post::Write { to, slot, op, src, imm, inline } => {
                    self.write(nic, now, (to, slot), (op, src), imm, inline);
                }
                Post::Note { to, imm } => self.note(nic, now, to, imm),
                Post::Fold { op, step } => {
                    folded += self.fold(nic, now, op, step);
                    if folded >= TURN_BYTES {
                        self.busy = true;
                        return;
                    }
                }
            }
        }
    }

    fn take(&mut self, nic: &mut Nic, now: Time, completion: &Completion) {
        let peer = rank_of(completion.wr_id);
        if completion.status != WcStatus::Success {
            return self.engine.broken(now, peer);
        }
        if completion.wr_id != recv_id(peer) {
            return self.engine.sent(now, peer);
        }
        let Some(Some(link)) = self.links.get(peer as usize) else { return };
        // If there is no room, none is needed: the queue held as many before.
        let _ = nic.post_recv(link.qpn, &RecvWr::new(recv_id(peer), &[]));
        // A peer may send what no member of a group sends: it has no slot then.
        let is_write = completion.opcode == WcOpcode::RecvWriteImm;
        let len = if is_write { completion.byte_len as usize } else { 0 };
        match completion.imm {
            Some(imm) => self.engine.message(now, peer, imm, len),
            None => self.engine.broken(now, peer),
        }
    }

    fn write(
        &mut self,
        nic: &mut Nic,
        now: Time,
        (to, slot): (Rank, u16),
        (op, src): (OpId, Span),
        imm: u32,
        inline: bool,
    ) {
        let Some((link, remote)) = self.remote(to) else {
            return self.engine.give_up(now);
        };
        let qpn = link.qpn;
        let at = u64::from(slot) * u64::from(remote.slot_bytes);
        let to_slot = Remote { addr: remote.addr + at, rkey: remote.rkey };
        let Some(sge) = self.sge(op, src) else {
            return self.engine.give_up(now);
        };
        let wr = SendWr::new(send_id(to), SendOp::WriteImm(to_slot, imm), &[]);
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
            // A queue pair in the error state has had a completion that says so, or will have.
            self.engine.broken(now, to);
        }
    }

    fn note(&mut self, nic: &mut Nic, now: Time, to: Rank, imm: u32) {
        let Some((link, _)) = self.remote(to) else {
            return self.engine.broken(now, to);
        };
        let wr = SendWr::new(send_id(to), SendOp::SendImm(imm), &[]);
        let wr = SendWr { flags: SendFlags::SIGNALED, ..wr };
        if nic.post_send(now, link.qpn, &wr).is_err() {
            self.engine.broken(now, to);
        }
    }

    fn remote(&self, to: Rank) -> Option<(&super::Link, &super::LinkInfo)> {
        let link = self.links.get(to as usize)?.as_ref()?;
        Some((link, link.remote.as_ref()?))
    }

    /// Computes a fold; returns how many bytes it has read.
    fn fold(&mut self, nic: &mut Nic, now: Time, op: OpId, step: u32) -> usize {
        match self.compute(nic, op, step) {
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

    fn compute(&self, nic: &mut Nic, op: OpId, step: u32) -> Option<usize> {
        let schedule = self.engine.schedule(op)?;
        let (how, dtype, ranks) = (schedule.reduce_op(), schedule.data_type(), schedule.ranks());
        let (dst, terms, finish) = self.engine.fold(op, step);
        let to = self.sge(op, dst)?;
        if dst.len == 0 {
            return Some(0);
        }
        let terms: Option<Vec<Sge>> = terms.map(|term| self.term_sge(op, term, dst.len)).collect();
        let terms = terms?;
        // In place a term is the destination, which is then not read beside.
        let is_own = |sge: &Sge| sge.addr == to.addr && sge.lkey == to.lkey;
        let reads: Vec<_> = terms.iter().filter(|sge| !is_own(sge)).copied().collect();
        let bytes = dst.len * terms.len();
        let done = nic.with_slices(self.pd, &reads, &[to], |reads, writes| {
            let mut reads = reads.iter();
            let of = |sge: &Sge| if is_own(sge) { None } else { reads.next().copied() };
            let terms: Vec<_> = terms.iter().map(of).collect();
            fold(how, dtype, writes[0], &terms);
            if finish {
                reduce::finish(how, dtype, writes[0], ranks.into());
            }
        });
        done.ok().map(|()| bytes)
    }
}
