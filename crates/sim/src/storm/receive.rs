//! Posts receives, and checks what arrived in them.

use core::net::IpAddr;

use bowline_link::LinkConfig;
use bowline_nic::{Completion, QpType, RecvWr, Sge, Time, WcOpcode, WcStatus};

use super::app::{Action, Storm};
use super::attack::FORGED;
use super::crime::Crime;
use super::end::WrId;
use super::hostage;
use super::memory::{GRH_LEN, Pieces};
use super::post::spoil_key;
use crate::check::delivery::Message;
use crate::world::{NicId, World};

impl Storm<'_> {
    /// Posts the receives of an end that may be posted now.
    pub(super) fn post_receives(&mut self, world: &mut World, end: usize) -> bool {
        let crime = self.crime_of(end);
        if self.end_plan(end).uses_srq || crime == Some(Crime::NeverReady) {
            return false;
        }
        let mut any = false;
        loop {
            let state = &self.ends[end];
            let due = state.recv_credits.front().is_some_and(|at| *at <= world.now());
            let reliable = self.conn_plan(end).qp_type == QpType::Rc;
            // Forgeries may have consumed the receives of a hostage's messages.
            let any_number = !reliable || self.is_hostage(end);
            let buffers = state.memory.recv_pieces.len();
            let more = if any_number { buffers > 0 } else { state.next_recv < buffers };
            if !due || !more {
                return any;
            }
            self.post_receive(world, end);
            any = true;
        }
    }

    fn post_receive(&mut self, world: &mut World, end: usize) {
        let conn = &self.conns[end / 2];
        let state = &self.ends[end];
        let buffer = state.next_recv % state.memory.recv_pieces.len();
        let wr_id = WrId::Recv { end, buffer, epoch: conn.epoch }.encode();
        let zone = &state.memory.recv;
        let mut sges: Vec<Sge> =
            state.memory.recv_pieces[buffer].iter().map(|(at, len)| zone.sge(*at, *len)).collect();
        match self.crime_of(end) {
            Some(Crime::SendTooLong) => {
                // One byte less than the only message needs.
                sges.truncate(1);
                let message =
                    self.end_plan(end ^ 1).ops.iter().find(|op| op.bad).map_or(1, |op| op.len);
                sges[0].len = sges[0].len.min(message - 1);
            }
            Some(Crime::RecvBadLocalKey) => spoil_key(&mut sges),
            _ => {}
        }
        let wr = RecvWr::new(wr_id, &sges);
        match self.post_to(world, end, |nic, _, qpn| nic.post_recv(qpn, &wr)) {
            Ok(()) => {
                world.note(wr_id, || format!("post receive {wr_id:#x}"));
                self.ends[end].receives.post(wr_id);
            }
            Err(error) => {
                self.sink.report(
                    world.now(),
                    "completions",
                    format!("receive {wr_id:#x} refused: {error}"),
                );
            }
        }
        let state = &mut self.ends[end];
        state.next_recv += 1;
        state.recv_credits.pop_front();
    }

    /// Posts the receives of a shared queue that may be posted now.
    pub(super) fn post_shared_receives(&mut self, world: &mut World, nic: NicId) -> bool {
        let mut any = false;
        while let Some(srq) = &mut self.nics[nic.0].srq
            && let Some((_, buffer)) =
                srq.credits.front().copied().filter(|(at, _)| *at <= world.now())
        {
            srq.credits.pop_front();
            let wr_id = WrId::Shared { nic: nic.0, buffer }.encode();
            let sges: Vec<Sge> =
                srq.buffers[buffer].iter().map(|(at, len)| srq.zone.sge(*at, *len)).collect();
            let posted = srq.queue.post(&RecvWr::new(wr_id, &sges));
            srq.receives.post(wr_id);
            if let Err(error) = posted {
                let what = format!("shared receive {wr_id:#x} refused: {error}");
                self.sink.report(world.now(), "completions", what);
            }
            any = true;
        }
        any
    }

    /// A receive of an end's own queue completed.
    pub(super) fn received(
        &mut self,
        world: &mut World,
        end: usize,
        buffer: usize,
        epoch: u32,
        completion: &Completion,
    ) {
        let now = world.now();
        if epoch != self.conns[end / 2].epoch {
            self.sink.report(
                now,
                "completions",
                format!("receive {:#x} of a former connection", completion.wr_id),
            );
            return;
        }
        let in_order = self.ends[end].receives.complete(completion.wr_id);
        self.sink.check(now, "completions", in_order);
        let pieces = self.ends[end].memory.recv_pieces[buffer].clone();
        if completion.status == WcStatus::Success {
            let judged = match self.conn_plan(end).qp_type {
                _ if self.is_hostage(end) => Ok(()),
                QpType::Rc | QpType::Xrc => self.judge_reliable(end, completion, &pieces, None),
                QpType::Uc | QpType::Xp => {
                    self.judge_unreliable(world, end, completion, &pieces, 0)
                }
                QpType::Ud => self.judge_unreliable(world, end, completion, &pieces, GRH_LEN),
            };
            self.sink.check(now, "delivery", judged);
            self.ends[end].memory.recv.restore(&pieces);
        } else {
            self.receive_failed(world, end, completion);
            self.ends[end].memory.recv.loosen(&pieces);
            if self.is_hostage(end) {
                // Nobody reconnects it, so the next one would fail as well.
                return;
            }
        }
        let at = now.plus_nanos(self.end_plan(end).recv_delay_ns);
        self.ends[end].recv_credits.push_back(at);
        if at > now {
            self.at(world, at, Action::Look);
        }
    }

    /// A receive of a shared queue completed.
    pub(super) fn received_shared(
        &mut self,
        world: &mut World,
        nic: NicId,
        buffer: usize,
        completion: &Completion,
    ) {
        let now = world.now();
        let Some(end) = self.nics[nic.0]
            .ends
            .iter()
            .copied()
            .find(|e| self.ends[*e].qp.qpn() == completion.qpn)
        else {
            self.sink.report(
                now,
                "completions",
                format!("completion of an unknown QP: {completion:?}"),
            );
            return;
        };
        let Some(srq) = &mut self.nics[nic.0].srq else { return };
        let in_order = srq.receives.complete(completion.wr_id);
        let pieces = srq.buffers[buffer].clone();
        self.sink.check(now, "completions", in_order);
        if completion.status == WcStatus::Success {
            let judged = self.judge_reliable(end, completion, &pieces, Some(nic));
            self.sink.check(now, "delivery", judged);
        } else {
            self.receive_failed(world, end, completion);
        }
        let repost_ns = self.nic_plan(nic).srq.map_or(0, |plan| plan.repost_ns);
        let at = now.plus_nanos(repost_ns);
        if let Some(srq) = &mut self.nics[nic.0].srq {
            srq.zone.restore(&pieces);
            srq.credits.push_back((at, buffer));
        }
        if at > now {
            self.at(world, at, Action::Look);
        }
    }

    /// The next message of a reliable connection must be the one that arrived.
    fn judge_reliable(
        &mut self,
        end: usize,
        completion: &Completion,
        pieces: &Pieces,
        shared: Option<NicId>,
    ) -> Result<(), String> {
        let message = self.ends[end ^ 1].delivery.next_in_order()?;
        message.matches(completion, 0)?;
        let zone = match shared.and_then(|nic| self.nics[nic.0].srq.as_ref()) {
            Some(srq) => &srq.zone,
            None => &self.ends[end].memory.recv,
        };
        let bytes = zone.gather(pieces);
        let used = if completion.opcode == WcOpcode::Recv { message.len as usize } else { 0 };
        if used > 0 {
            message.matches_bytes(&bytes[..used])?;
        }
        // A restarted message may have left its beginning in another receive of the queue.
        if shared.is_none() || !self.starts_anew() {
            self.judge_rest(zone, pieces, used)?;
        }
        self.judge_announced(end, &message)?;
        self.judge_written(end, &message)
    }

    /// Nothing beyond the message may have been written.
    fn judge_rest(
        &self,
        zone: &super::arena::Zone,
        pieces: &Pieces,
        used: usize,
    ) -> Result<(), String> {
        let mut skip = used;
        for (at, len) in pieces {
            let n = skip.min(*len);
            skip -= n;
            let bytes = zone.model.actual(&zone.buffer, at + n..at + len);
            zone.model
                .check_read(at + n, &bytes)
                .map_err(|what| format!("behind the message: {what}"))?;
        }
        Ok(())
    }

    /// Everything that a reliable connection wrote before a message must be there when the message
    /// is. From then on the memory belongs to the receiver.
    fn judge_written(&mut self, end: usize, message: &Message) -> Result<(), String> {
        let Some(WrId::Send { end: sender, op }) = WrId::decode(message.wr_id) else {
            return Err(format!("no such request: {:#x}", message.wr_id));
        };
        let slots = &self.ends[end].memory.slots;
        slots.model.landed_before(&slots.buffer, message.wr_id)?;
        for index in core::mem::replace(&mut self.ends[end].announced, op + 1)..=op {
            let plan = self.end_plan(sender).ops[index];
            if plan.kind.is_write() && !plan.bad && self.is_alone(sender, index) {
                let write = self.write_of(sender, index, &plan);
                let slots = &mut self.ends[end].memory.slots;
                slots.model.reuse(&slots.buffer, &write, !write.pattern);
            }
        }
        Ok(())
    }

    /// Whether no other operation targets the place of a WRITE.
    fn is_alone(&self, sender: usize, index: usize) -> bool {
        let (ops, places) = (&self.end_plan(sender).ops, &self.ends[sender].memory.places);
        let range = |i: usize| places[i].remote..places[i].remote + ops[i].len as usize;
        let own = range(index);
        (0..ops.len()).all(|i| {
            let goes_there = ops[i].kind.is_write() || places[i].reads_slots;
            let other = range(i);
            i == index || !goes_there || other.end <= own.start || own.end <= other.start
        })
    }

    /// A WRITE with immediate announces that its bytes are there.
    fn judge_announced(&self, end: usize, message: &Message) -> Result<(), String> {
        if message.opcode != WcOpcode::RecvWriteImm {
            return Ok(());
        }
        let Some(WrId::Send { end: sender, op }) = WrId::decode(message.wr_id) else {
            return Err(format!("no such request: {:#x}", message.wr_id));
        };
        let write = self.write_of(sender, op, &self.end_plan(sender).ops[op]);
        let slots = &self.ends[end].memory.slots;
        slots.model.landed(&slots.buffer, &write)
    }

    /// Some message that the peer sent must be the one that arrived.
    fn judge_unreliable(
        &mut self,
        world: &World,
        end: usize,
        completion: &Completion,
        pieces: &Pieces,
        header_len: usize,
    ) -> Result<(), String> {
        let bytes = self.ends[end].memory.recv.gather(pieces);
        let grh = header_len > 0;
        if completion.grh != grh {
            return Err(format!("GRH flag is {}", completion.grh));
        }
        if grh {
            self.judge_grh(world, end, &bytes[..header_len])?;
        }
        if grh && completion.src_qpn != self.ends[end ^ 1].qp.qpn() {
            return Err(format!(
                "datagram from QP {}, which is not the sender",
                completion.src_qpn
            ));
        }
        let payload = match completion.opcode {
            WcOpcode::Recv => bytes.get(header_len..completion.byte_len as usize),
            _ => None,
        };
        let sender = &mut self.ends[end ^ 1].delivery;
        let message = sender.any_like(completion, header_len as u32, payload)?;
        if message.wr_id == FORGED {
            self.coverage.attack.received += 1;
            return Ok(());
        }
        self.judge_announced(end, &message)
    }

    /// The routing header names sender and receiver: an IPv6 header, or 20 bytes and an IPv4 one.
    fn judge_grh(&self, world: &World, end: usize, grh: &[u8]) -> Result<(), String> {
        let addr = |end: usize| world.nic(self.ends[end].nic).config().addr;
        let (src, dst) = match (addr(end ^ 1), addr(end)) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (src.octets().to_vec(), dst.octets().to_vec()),
            (src, dst) => (octets_v6(src), octets_v6(dst)),
        };
        let named = [src, dst].concat();
        let found = &grh[GRH_LEN - named.len()..];
        if found != named {
            return Err(format!("the GRH names {found:?}, not {named:?}"));
        }
        Ok(())
    }

    /// A receive failed: as a consequence, or as a victim.
    fn receive_failed(&mut self, world: &mut World, end: usize, completion: &Completion) {
        self.coverage.flushed_receives += 1;
        let knows_qkeys = self.scenario.attack.as_ref().is_some_and(|attack| attack.knows_qkeys);
        let is_datagram = self.conn_plan(end).qp_type == QpType::Ud;
        if is_datagram && knows_qkeys && completion.status == WcStatus::LocLenErr {
            // A forged message was too long.
            self.coverage.attack.received += 1;
            return;
        }
        self.ends[end].was_flushed = true;
        if self.is_hostage(end) {
            if !hostage::receive_may_fail(completion.status) {
                let what = format!("receive {:#x} failed: {}", completion.wr_id, completion.status);
                self.sink.report(world.now(), "attack", what);
            }
            return;
        }
        let crime = self.crime_of(end);
        let expected = completion.status == WcStatus::WrFlushErr
            || crime.is_some_and(|crime| crime.victim_statuses().contains(&completion.status));
        let reliable = self.conn_plan(end).qp_type == QpType::Rc;
        if !expected || !reliable {
            let what = format!("receive {:#x} failed: {}", completion.wr_id, completion.status);
            self.sink.report(world.now(), "completions", what);
        }
    }

    /// Whether a time is so long after healing that no fault can excuse a failure.
    pub(super) fn is_past_excuses(&self, now: Time, end: usize) -> bool {
        const GRACE_NS: u64 = 20_000_000;
        let timeout_ns = 4_096u64 << self.end_plan(end).timeout;
        // Packets sent before healing may still be queued.
        let queues = [self.scenario.access, self.scenario.core];
        let drain_ns: u64 = queues.iter().map(LinkConfig::drain_ns).sum();
        let grace_ns = GRACE_NS + 4 * timeout_ns + 2 * drain_ns + self.patience_ns();
        now.as_nanos() > self.scenario.heal_ns + grace_ns
    }
}

fn octets_v6(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
