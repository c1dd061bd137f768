//! Checks completions.

use bowline_nic::{Completion, QpType, WcOpcode, WcStatus};

use super::app::{Action, Storm};
use super::crime::Crime;
use super::end::{ConnState, WrId};
use super::hostage;
use super::memory::SWAP_WORDS;
use super::scenario::{OpKind, OpPlan};
use super::setup::ADD_WORDS;
use crate::check::pattern;
use crate::world::{NicId, World};

/// After a failure both ends are reconnected, this much later.
const RECOVERY_NS: u64 = 100_000;

impl Storm<'_> {
    /// Something completed.
    pub(super) fn completed(&mut self, world: &mut World, nic: NicId, completion: &Completion) {
        world.note(completion.wr_id ^ (completion.status as u64) << 56, || {
            format!("nic{} {completion:?}", nic.0)
        });
        self.coverage.completions += 1;
        let (owner, id) = match WrId::decode(completion.wr_id) {
            Some(id @ (WrId::Send { end, .. } | WrId::Recv { end, .. }))
                if end < self.ends.len() =>
            {
                let owner = &self.ends[end];
                (owner.nic == nic && owner.qp.qpn() == completion.qpn, id)
            }
            Some(id @ WrId::Shared { nic: owner, .. }) => (owner == nic.0, id),
            _ => {
                self.sink.report(
                    world.now(),
                    "completions",
                    format!("unknown request: {completion:?}"),
                );
                return;
            }
        };
        if !owner {
            self.sink.report(
                world.now(),
                "completions",
                format!("at the wrong QP: {completion:?}"),
            );
            return;
        }
        match id {
            WrId::Send { end, .. } => self.send_completed(world, end, completion),
            WrId::Recv { end, buffer, epoch } => {
                self.received(world, end, buffer, epoch, completion)
            }
            WrId::Shared { buffer, .. } => self.received_shared(world, nic, buffer, completion),
        }
    }

    fn send_completed(&mut self, world: &mut World, end: usize, completion: &Completion) {
        let first_failure = !self.ends[end].sends.has_failed();
        let retired = match self.ends[end].sends.complete(completion.wr_id, completion.status) {
            Ok(retired) => retired,
            Err(what) => {
                self.sink.report(world.now(), "completions", what);
                return;
            }
        };
        for wr_id in retired.silent {
            self.succeeded(world, end, wr_id);
        }
        if completion.status == WcStatus::Success {
            let fields = self.check_fields(end, completion);
            self.sink.check(world.now(), "completions", fields);
            self.succeeded(world, end, completion.wr_id);
        } else {
            if first_failure {
                self.end_failed(world, end, completion);
            }
            self.failed(end, completion.wr_id);
        }
    }

    fn op_of(&self, end: usize, wr_id: u64) -> (usize, OpPlan) {
        let index = (wr_id & 0xff_ffff) as usize;
        (index, self.end_plan(end).ops[index])
    }

    fn check_fields(&self, end: usize, completion: &Completion) -> Result<(), String> {
        let (_, op) = self.op_of(end, completion.wr_id);
        let opcode = match op.kind {
            OpKind::Send | OpKind::SendImm | OpKind::SendInvalidate => WcOpcode::Send,
            OpKind::Write | OpKind::WriteImm => WcOpcode::Write,
            OpKind::Read => WcOpcode::Read,
            OpKind::CompareSwap => WcOpcode::CompareSwap,
            OpKind::FetchAdd => WcOpcode::FetchAdd,
        };
        let returns = op.kind == OpKind::Read || op.kind.is_atomic();
        if completion.opcode != opcode || (returns && completion.byte_len != op.len) {
            return Err(format!("{op:?} completed as {completion:?}"));
        }
        Ok(())
    }

    /// A request succeeded: its effect must be there.
    pub(super) fn succeeded(&mut self, world: &mut World, end: usize, wr_id: u64) {
        let (index, op) = self.op_of(end, wr_id);
        let now = world.now();
        if op.bad {
            self.sink.report(now, "crime", format!("bad request {wr_id:#x} succeeded: {op:?}"));
            return;
        }
        if self.conn_plan(end).qp_type != QpType::Rc {
            return;
        }
        if self.is_hostage(end) {
            // The acknowledgement may have been forged.
            return self.doubt(end, wr_id);
        }
        let (checker, judged) = match op.kind {
            OpKind::Write | OpKind::WriteImm => {
                let slots = &mut self.ends[end ^ 1].memory.slots;
                ("bytes", slots.model.succeeded(&slots.buffer, wr_id))
            }
            OpKind::Send | OpKind::SendImm | OpKind::SendInvalidate => {
                ("delivery", self.arrived(end, wr_id))
            }
            OpKind::Read => ("bytes", self.judge_read(end, index, &op)),
            OpKind::FetchAdd => ("atomics", self.judge_add(end, index, &op)),
            OpKind::CompareSwap => ("atomics", self.judge_swap(end, index, &op)),
        };
        self.sink.check(now, checker, judged.map_err(|what| format!("request {wr_id:#x}: {what}")));
    }

    /// An acknowledged SEND is in the peer's receive buffer, seen by the peer or not.
    fn arrived(&mut self, end: usize, wr_id: u64) -> Result<(), String> {
        let sender = &self.ends[end];
        let Some(position) = sender.delivery.position_of(wr_id) else { return Ok(()) };
        if position < sender.delivery.delivered() || self.end_plan(end ^ 1).uses_srq {
            return Ok(());
        }
        let receiver = &self.ends[end ^ 1];
        let pieces = receiver.memory.recv_pieces.get(receiver.first_recv + position);
        let pieces = pieces.ok_or("acknowledged without a receive")?;
        let (index, op) = self.op_of(end, wr_id);
        let bytes = receiver.memory.recv.gather(pieces);
        let sent = pattern::message(
            super::memory::op_pattern(self.scenario.seed, end, index),
            op.len as usize,
        );
        match pattern::first_difference(&sent, &bytes[..sent.len()]) {
            None => Ok(()),
            Some(difference) => Err(format!("acknowledged, but not received: {difference}")),
        }
    }

    fn judge_read(&mut self, end: usize, index: usize, op: &OpPlan) -> Result<(), String> {
        let place = &self.ends[end].memory.places[index];
        let peer = &self.ends[end ^ 1].memory;
        let source = if place.reads_slots { &peer.slots } else { &peer.reads };
        let bytes = self.ends[end].memory.results.gather(&place.local);
        debug_assert_eq!(bytes.len(), op.len as usize);
        // A fenced request after the READ waits for it, and so does everything after that.
        let behind = self.end_plan(end).ops.iter().enumerate().skip(index + 1);
        let fence = behind.into_iter().find(|(_, op)| op.fence);
        let fence = fence.map_or(u64::MAX, |(op, _)| WrId::Send { end, op }.encode());
        source
            .model
            .check_fenced_read(place.remote, &bytes, fence)
            .map_err(|what| format!("READ returned wrong bytes: {what}"))?;
        self.ends[end].memory.results.restore(&place.local);
        Ok(())
    }

    fn result_word(&self, end: usize, index: usize) -> u64 {
        let memory = &self.ends[end].memory;
        let word = memory.results.word(memory.places[index].local[0].0);
        memory.results.restore(&memory.places[index].local);
        word
    }

    fn judge_add(&mut self, end: usize, index: usize, op: &OpPlan) -> Result<(), String> {
        let original = self.result_word(end, index);
        let peer = self.ends[end ^ 1].nic.0;
        self.nics[peer].add_words[usize::from(op.choice) % ADD_WORDS].returned(original)
    }

    fn judge_swap(&mut self, end: usize, index: usize, op: &OpPlan) -> Result<(), String> {
        let original = self.result_word(end, index);
        let swap = self.ends[end].swaps[index].ok_or("never posted")?;
        self.ends[end].swap_words[usize::from(op.choice) % SWAP_WORDS].returned(swap, original)
    }

    fn failed(&mut self, end: usize, wr_id: u64) {
        self.coverage.failed_sends += 1;
        self.doubt(end, wr_id);
    }

    /// A request may have happened or not.
    pub(super) fn doubt(&mut self, end: usize, wr_id: u64) {
        let (index, op) = self.op_of(end, wr_id);
        let pieces = self.ends[end].memory.places[index].local.clone();
        match op.kind {
            _ if op.bad => {}
            OpKind::Write | OpKind::WriteImm => self.ends[end ^ 1].memory.slots.model.failed(wr_id),
            OpKind::Send | OpKind::SendImm | OpKind::SendInvalidate => {}
            OpKind::Read => {
                self.ends[end].memory.results.loosen(&pieces);
            }
            OpKind::FetchAdd => {
                self.ends[end].memory.results.loosen(&pieces);
                let peer = self.ends[end ^ 1].nic.0;
                self.nics[peer].add_words[usize::from(op.choice) % ADD_WORDS].failed();
            }
            OpKind::CompareSwap => {
                self.ends[end].memory.results.loosen(&pieces);
                if let Some(swap) = self.ends[end].swaps[index] {
                    self.ends[end].swap_words[usize::from(op.choice) % SWAP_WORDS].failed(swap);
                }
            }
        }
    }

    /// The first failure of a QP: is it a legitimate one?
    fn end_failed(&mut self, world: &mut World, end: usize, completion: &Completion) {
        let (now, status) = (world.now(), completion.status);
        let conn = &mut self.conns[end / 2];
        let already =
            std::mem::replace(&mut conn.failed, true) || conn.state == ConnState::Draining;
        let (_, op) = self.op_of(end, completion.wr_id);
        match self.crime_of(end) {
            None if self.is_hostage(end) => {
                self.coverage.attack.hostages_failed += 1;
                if !hostage::send_may_fail(status) || self.conn_plan(end).qp_type != QpType::Rc {
                    let what = format!("request {:#x} failed with {status}", completion.wr_id);
                    self.sink.report(now, "attack", what);
                }
                if self.conns[end / 2].state == ConnState::Up {
                    self.conns[end / 2].state = ConnState::Draining;
                    self.at(world, now.plus_nanos(RECOVERY_NS), Action::Bury { conn: end / 2 });
                }
            }
            Some(crime) => {
                conn_dead(&mut self.conns[end / 2]);
                self.judge_crime(world, end, crime, &op, completion);
            }
            None => {
                let legal = match status {
                    WcStatus::WrFlushErr => already,
                    WcStatus::RetryExcErr => {
                        already || !(self.scenario.mild || self.is_past_excuses(now, end))
                    }
                    _ => false,
                };
                if !legal || self.conn_plan(end).qp_type != QpType::Rc {
                    let what = format!(
                        "request {:#x} ({:?}) failed with {status}",
                        completion.wr_id, op.kind
                    );
                    self.sink.report(now, "completions", what);
                }
                self.coverage.retry_exceeded += u64::from(status == WcStatus::RetryExcErr);
                self.at(world, now.plus_nanos(RECOVERY_NS), Action::Reconnect { conn: end / 2 });
            }
        }
    }

    fn judge_crime(
        &mut self,
        world: &mut World,
        end: usize,
        crime: Crime,
        op: &OpPlan,
        completion: &Completion,
    ) {
        let status = completion.status;
        let gave_up = status == WcStatus::RetryExcErr;
        let caught = crime.statuses().contains(&status)
            && (op.bad || (crime.is_gradual() && self.conns[end / 2].crime_done));
        self.coverage.crimes_caught += u64::from(caught);
        self.coverage.crimes_timed_out += u64::from(gave_up);
        // Once the bad request has been sent, the responder may be in error and answer nothing any
        // more, not even earlier requests.
        let out = &self.end_plan(end).ops[..self.ends[end].next_op];
        let is_out = crime.is_gradual() || out.iter().any(|op| op.bad);
        let excused = gave_up && (is_out || !self.scenario.mild);
        if !caught && !excused {
            let what = format!(
                "{crime:?}: request {:#x} ({:?}, bad: {}) failed with {status}",
                completion.wr_id, op.kind, op.bad
            );
            self.sink.report(world.now(), "crime", what);
        }
    }
}

fn conn_dead(conn: &mut super::end::Conn) {
    conn.state = ConnState::Dead;
}
