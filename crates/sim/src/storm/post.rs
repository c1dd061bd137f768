//! Posting sends.

use bowline_nic::{
    AddressVector, Nic, Payload, PostError, QpType, Remote, SendFlags, SendOp, SendWr, Sge, Time,
    UdDest, WcOpcode,
};
use bowline_wire::Qpn;

use super::app::{Action, Storm};
use super::crime::Crime;
use super::end::{End, WrId};
use super::memory::{SWAP_WORDS, op_pattern};
use super::scenario::{OpKind, OpPlan};
use super::setup::{ADD_WORDS, QKEY};
use crate::check::atomics::Swap;
use crate::check::bytes::Write;
use crate::check::delivery::Message;
use crate::check::pattern;
use crate::hash::mix;
use crate::world::World;

/// An unused key: keys are drawn from 2^32, and no scenario has more than a few hundred.
const NO_KEY: u32 = 0xdead_beef;

/// Gives the first entry that will be read an unused key.
pub(super) fn spoil_key(sges: &mut [Sge]) {
    if let Some(sge) = sges.iter_mut().find(|sge| sge.len > 0) {
        sge.lkey = NO_KEY;
    }
}

impl Storm<'_> {
    /// Posts what an end has to send now.
    pub(super) fn post_sends(&mut self, world: &mut World, end: usize) -> bool {
        let plan = self.end_plan(end);
        let mut any = false;
        loop {
            let state = &self.ends[end];
            let full = state.sends.len() >= plan.send_depth as usize;
            if state.next_op == plan.ops.len() || full || state.sends.has_failed() {
                return any;
            }
            if state.ready_at > world.now() {
                return any;
            }
            self.post_send(world, end, state.next_op);
            any = true;
        }
    }

    fn post_send(&mut self, world: &mut World, end: usize, index: usize) {
        let plan = self.end_plan(end);
        let op = plan.ops[index];
        let wr_id = WrId::Send { end, op: index }.encode();
        let send_op = self.send_op(end, index, &op);
        let sges = self.sges(end, index, &op);
        let inline = pattern::message(op_pattern(self.scenario.seed, end, index), op.len as usize);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, op.signaled);
        flags.set(SendFlags::FENCE, op.fence);
        flags.set(SendFlags::SOLICITED, op.solicited);
        let payload = if op.inline { Payload::Inline(&inline) } else { Payload::Sges(&sges) };
        let ud = (self.conn_plan(end).qp_type == QpType::Ud).then(|| {
            let peer = &self.ends[end ^ 1];
            let av = AddressVector::new(world.nic(peer.nic).config().addr);
            UdDest { av, qpn: peer.qp.qpn(), qkey: if op.stray { QKEY ^ 1 } else { QKEY } }
        });
        let wr = SendWr { payload, flags, ud, ..SendWr::new(wr_id, send_op, &[]) };
        let now = world.now();
        let posted = self.post_to(world, end, |nic, now, qpn| nic.post_send(now, qpn, &wr));
        match posted {
            Ok(()) => self.posted(world, end, index, &op, send_op),
            // The QP may have failed before we have polled that.
            Err(PostError::WrongState(_)) if self.may_have_failed(world, end) => {
                self.coverage.refused_posts += 1;
            }
            Err(error) => {
                self.sink.report(
                    now,
                    "completions",
                    format!("post of {wr_id:#x} ({op:?}) refused: {error}"),
                );
            }
        }
        let state = &mut self.ends[end];
        state.next_op += 1;
        if let Some(next) = plan.ops.get(state.next_op) {
            state.ready_at = now.plus_nanos(next.think_ns);
            let at = state.ready_at;
            if at > now {
                self.at(world, at, Action::Look);
            }
        }
    }

    /// Posts to an end's queue pair, wherever it is.
    pub(super) fn post_to(
        &self,
        world: &mut World,
        end: usize,
        mut post: impl FnMut(&mut Nic, Time, Qpn) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let End { nic, qp, .. } = &self.ends[end];
        let Ok(posted) =
            qp.post(&self.engines(world, *nic), |nic, now, qpn| match post(nic, now, qpn) {
                Err(PostError::Away) => None,
                done => Some(done),
            });
        posted.unwrap_or(Err(PostError::Away))
    }

    /// Whether an end's QP is in error, legitimately or not: completions will tell.
    fn may_have_failed(&self, world: &World, end: usize) -> bool {
        let (nic, qpn) = self.home(end);
        let info = world.nic(nic).query_qp(qpn);
        info.is_some_and(|info| info.state == bowline_nic::QpState::Err)
    }

    fn sges(&self, end: usize, index: usize, op: &OpPlan) -> Vec<Sge> {
        let memory = &self.ends[end].memory;
        let reads = op.kind == OpKind::Read || op.kind.is_atomic();
        let zone = if reads { &memory.results } else { &memory.src };
        let mut sges: Vec<Sge> =
            memory.places[index].local.iter().map(|(at, len)| zone.sge(*at, *len)).collect();
        if op.bad && self.crime_of(end) == Some(Crime::SendBadLocalKey) {
            spoil_key(&mut sges);
        }
        sges
    }

    fn remote(&self, end: usize, index: usize, op: &OpPlan) -> Remote {
        let place = &self.ends[end].memory.places[index];
        let peer = &self.ends[end ^ 1].memory;
        let zone = match op.kind {
            OpKind::Read if !place.reads_slots => &peer.reads,
            _ => &peer.slots,
        };
        let mut remote = Remote { addr: zone.iova + place.remote as u64, rkey: zone.key.0 };
        if op.stray {
            remote.rkey = NO_KEY;
        }
        if op.bad {
            match self.crime_of(end) {
                Some(Crime::WriteBadKey | Crime::ReadBadKey) => remote.rkey = NO_KEY,
                Some(Crime::WriteOutOfBounds | Crime::ReadOutOfBounds) => {
                    // Between one byte and all but one of it are out of bounds.
                    let outside = 1 + u64::from(op.choice) % u64::from(op.len - 1);
                    remote.addr =
                        (zone.iova + zone.len as u64 + outside).saturating_sub(op.len.into());
                }
                Some(Crime::WriteNoRight) => {
                    remote = Remote { addr: peer.reads.iova, rkey: peer.reads.key.0 };
                }
                Some(Crime::WriteRevokedKey) => {
                    let revoked = self.ends[end].memory.places[index - 1].invalidate;
                    remote = Remote { addr: 0, rkey: revoked.expect("a key was made for it") };
                }
                Some(Crime::ReadNoRight) => {
                    remote = Remote { addr: peer.recv.iova, rkey: peer.recv.key.0 };
                }
                _ => {}
            }
        }
        remote
    }

    fn send_op(&mut self, end: usize, index: usize, op: &OpPlan) -> SendOp {
        let imm = imm_of(end, index);
        match op.kind {
            OpKind::Send => SendOp::Send,
            OpKind::SendImm => SendOp::SendImm(imm),
            OpKind::SendInvalidate => {
                let key = self.ends[end].memory.places[index].invalidate;
                SendOp::SendInvalidate(key.expect("a key was made for it"))
            }
            OpKind::Write => SendOp::Write(self.remote(end, index, op)),
            OpKind::WriteImm => SendOp::WriteImm(self.remote(end, index, op), imm),
            OpKind::Read => SendOp::Read(self.remote(end, index, op)),
            OpKind::FetchAdd => self.fetch_add(end, op),
            OpKind::CompareSwap => self.compare_swap(end, index, op),
        }
    }

    fn fetch_add(&self, end: usize, op: &OpPlan) -> SendOp {
        let word = usize::from(op.choice) % ADD_WORDS;
        let peer = &self.nics[self.ends[end ^ 1].nic.0];
        let mut remote = Remote { addr: peer.adds.iova + word as u64 * 8, rkey: peer.adds.key.0 };
        if op.bad {
            let reads = &self.ends[end ^ 1].memory.reads;
            remote = Remote { addr: reads.iova, rkey: reads.key.0 };
        }
        SendOp::FetchAdd { remote, add: peer.add_words[word].addend() }
    }

    fn compare_swap(&mut self, end: usize, index: usize, op: &OpPlan) -> SendOp {
        let word = usize::from(op.choice) % SWAP_WORDS;
        let peer = &self.ends[end ^ 1].memory;
        let mut zone = &peer.swaps;
        if op.bad {
            zone = &peer.reads;
        }
        let at = if op.bad { 0 } else { word as u64 * 8 };
        let remote = Remote { addr: zone.iova + at, rkey: zone.key.0 };
        let held = self.ends[end].swap_ahead[word];
        // Every fourth one compares with a wrong value, and must change nothing.
        let compare = if op.choice % 4 == 3 { !held } else { held };
        let swap = mix(held ^ index as u64);
        let state = &mut self.ends[end];
        state.swaps[index] = Some(Swap { compare, swap });
        if compare == held && !op.bad {
            state.swap_ahead[word] = swap;
        }
        SendOp::CompareSwap { remote, compare, swap }
    }

    /// Updates the models for a request that the engine accepted.
    fn posted(
        &mut self,
        world: &mut World,
        end: usize,
        index: usize,
        op: &OpPlan,
        send_op: SendOp,
    ) {
        let wr_id = WrId::Send { end, op: index }.encode();
        let plan = self.end_plan(end);
        self.coverage.ops.count(op.kind);
        world.note(wr_id, || format!("post {wr_id:#x} {:?} {} bytes", op.kind, op.len));
        self.count_psns(end, op);
        self.ends[end].sends.post(wr_id, op.signaled || plan.signal_all);
        let pattern = op_pattern(self.scenario.seed, end, index);
        // An empty WRITE touches no memory, so its key is not checked.
        if op.stray && (op.len > 0 || !op.kind.is_write()) {
            self.coverage.strays += 1;
            return;
        }
        if op.kind.is_write() && !op.bad {
            let write = self.write_of(end, index, op);
            let reliable = self.conn_plan(end).qp_type == QpType::Rc;
            let model = &mut self.ends[end ^ 1].memory.slots.model;
            if reliable { model.posted(write) } else { model.posted_unreliably(write) }
        }
        if op.bad && op.kind == OpKind::Write {
            self.bad_write_posted(end, index, op);
        }
        if op.kind.consumes_receive() {
            let imm = matches!(send_op, SendOp::SendImm(_) | SendOp::WriteImm(..));
            let invalidate = match send_op {
                SendOp::SendInvalidate(key) => Some(key),
                _ => None,
            };
            self.ends[end].delivery.sent(Message {
                wr_id,
                opcode: if op.kind.is_send() { WcOpcode::Recv } else { WcOpcode::RecvWriteImm },
                len: op.len,
                pattern,
                imm: imm.then(|| imm_of(end, index)),
                invalidate,
                solicited: op.solicited,
            });
        }
    }

    /// A plain WRITE executes packet by packet: one that leaves its region half-way may have
    /// written the part inside by the time it is rejected.
    fn bad_write_posted(&mut self, end: usize, index: usize, op: &OpPlan) {
        if self.crime_of(end) != Some(Crime::WriteOutOfBounds) {
            return;
        }
        let remote = self.remote(end, index, op);
        let write = self.write_of(end, index, op);
        let slots = &mut self.ends[end ^ 1].memory.slots;
        if let Some(start) = remote.addr.checked_sub(slots.iova) {
            let range = start as usize..slots.len;
            slots.model.posted_unreliably(Write { range, ..write });
        }
    }

    /// Counts the QPs whose PSNs wrap around.
    fn count_psns(&mut self, end: usize, op: &OpPlan) {
        let packets = if op.kind.is_atomic() {
            1
        } else {
            op.len.div_ceil(self.conn_plan(end).mtu.bytes()).max(1)
        };
        let state = &mut self.ends[end];
        let before = state.psn + state.psns_used;
        state.psns_used += packets;
        let wraps = before <= 0xff_ffff && state.psn + state.psns_used > 0xff_ffff;
        self.coverage.psn_wraps += u64::from(wraps);
    }

    /// The WRITE that an operation is.
    pub(super) fn write_of(&self, end: usize, index: usize, op: &OpPlan) -> Write {
        let start = self.ends[end].memory.places[index].remote;
        Write {
            wr_id: WrId::Send { end, op: index }.encode(),
            range: start..start + op.len as usize,
            pattern: op_pattern(self.scenario.seed, end, index),
        }
    }
}

/// Immediate data that tells which operation it came from.
pub(super) fn imm_of(end: usize, index: usize) -> u32 {
    (end as u32) << 16 | index as u32
}
