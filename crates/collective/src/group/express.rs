//! Messages of operations with bounds: they use XP queue pairs. Their missing ranges are sent over
//! RC, or if there are many, over a second XP queue pair.

use bowline_nic::{
    Completion, Connect, EndMark, Payload, QpInit, QpType, RecvWr, Remote, Rnic, SendOp, SendWr,
    Time, WcOpcode, XpOptions,
};
use bowline_wire::{Psn, Qpn};

use super::drive::{WrKind, wr_id};
use super::nack::{AREA_BYTES, Granules};
use super::{ExpressInfo, Group, GroupConfig, GroupError};
use crate::Rank;
use crate::engine::{Arrival, OpId};
use crate::schedule::Span;

/// A message that lacks this many packets is repaired over XP, if it lacks much of its length.
/// Fewer packets usually get through over RC at the first attempt.
pub(super) const BULK_PACKETS: u32 = 16;

/// This rank's ends of the XP connections to a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpressLink {
    pub(super) messages: ExpressEnd,
    /// Repairs must not wait behind the messages that are posted already.
    pub(super) repairs: ExpressEnd,
}

/// This rank's end of an XP connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpressEnd {
    pub(super) qpn: Qpn,
    pub(super) token: Psn,
}

impl ExpressLink {
    /// Connects both queue pairs.
    pub(super) fn connect(
        self,
        nic: &mut dyn Rnic,
        now: Time,
        config: &GroupConfig,
        (peer, rc): (Rank, Connect),
        far: &ExpressInfo,
    ) -> Result<(), GroupError> {
        let ends = [
            (self.messages, far.qpn, far.token, config.slots),
            (self.repairs, far.repair_qpn, far.repair_token, first_repair_slot(config)),
        ];
        for (end, dest_qpn, rq_psn, first_slot) in ends {
            let connect = Connect { dest_qpn, rq_psn, ..rc };
            end.connect(nic, now, (peer, connect), first_slot..first_slot + config.express_slots)?;
        }
        Ok(())
    }
}

impl ExpressEnd {
    /// Connects like the RC queue pair, and posts a receive for each slot.
    fn connect(
        self,
        nic: &mut dyn Rnic,
        now: Time,
        (peer, connect): (Rank, Connect),
        slots: std::ops::Range<u16>,
    ) -> Result<(), GroupError> {
        let connect = Connect { sq_psn: self.token, ..connect };
        let [init, rtr, rts] = connect.steps(QpType::Xp);
        nic.modify_qp(now, self.qpn, &init)?;
        for slot in slots {
            let id = wr_id(WrKind::ExpressRecv, peer, slot);
            nic.post_recv(self.qpn, &RecvWr::new(id, &[]))?;
        }
        nic.modify_qp(now, self.qpn, &rtr)?;
        nic.modify_qp(now, self.qpn, &rts)?;
        Ok(())
    }
}

/// How many work requests of each kind an XP queue pair has room for.
pub(super) fn wr_depth(config: &GroupConfig) -> u32 {
    u32::from(config.express_slots)
}

/// Receives of repairs over XP are numbered from here on. They have no slots: repairs are written
/// into the slots of their messages.
pub(super) fn first_repair_slot(config: &GroupConfig) -> u16 {
    config.slots + config.express_slots
}

/// The offset in a ring of the area that lists the missing ranges of the message in this XP slot.
pub(super) fn nack_offset(config: &GroupConfig, slot: u16) -> usize {
    let slots = usize::from(config.slots) + usize::from(config.express_slots);
    slots * config.slot_bytes as usize + usize::from(slot) * AREA_BYTES
}

impl Group {
    /// Creates the XP queue pairs of a link, if the group uses XP.
    pub(super) fn express_link(
        &self,
        nic: &mut dyn Rnic,
        [token, repair_token]: [Psn; 2],
    ) -> Result<Option<ExpressLink>, GroupError> {
        if self.config.express_slots == 0 {
            return Ok(None);
        }
        let messages = self.express_end(nic, token)?;
        let repairs = self.express_end(nic, repair_token).inspect_err(|_| {
            // Cannot fail: it was created above.
            let _ = nic.destroy_qp(messages.qpn);
        })?;
        Ok(Some(ExpressLink { messages, repairs }))
    }

    fn express_end(&self, nic: &mut dyn Rnic, token: Psn) -> Result<ExpressEnd, GroupError> {
        let depth = wr_depth(&self.config);
        let init = QpInit {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInit::new(QpType::Xp, self.pd, self.cq)
        };
        let qpn = nic.create_qp(&init)?;
        let options = XpOptions {
            window: self.config.express_slots.next_power_of_two() as u8,
            grace_ns: self.config.reorder_ns,
            loss_log: depth,
        };
        nic.set_xp(qpn, &options).inspect_err(|_| {
            // Cannot fail: it was created above.
            let _ = nic.destroy_qp(qpn);
        })?;
        Ok(ExpressEnd { qpn, token })
    }

    /// A receive over XP has ended.
    pub(super) fn take_express(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (peer, slot): (Rank, u16),
        completion: &Completion,
    ) {
        let arrival = match completion.end {
            EndMark::Whole => {
                let is_write = completion.opcode == WcOpcode::RecvWriteImm;
                let len = if is_write { completion.byte_len } else { 0 };
                Arrival { imm: completion.imm, len: Some(len), missing: Vec::new() }
            }
            _ => {
                let losses = || nic.take_loss(completion.qpn);
                let record = std::iter::from_fn(losses).find(|loss| loss.wr_id == completion.wr_id);
                let record = record.filter(|record| record.message_len.is_some());
                record.map_or(Arrival::NOTHING, |record| Arrival {
                    imm: completion.imm,
                    len: record.message_len,
                    missing: record.missing,
                })
            }
        };
        self.engine.express_ended(now, peer, slot, arrival);
    }

    /// A peer is missing ranges, and has written which.
    pub(super) fn take_nack(&mut self, now: Time, peer: Rank, imm: u32, slot: u16) {
        let granules = self.granules(peer);
        let link = self.links.get(peer as usize).and_then(Option::as_ref);
        let (Some(link), Some(granules)) = (link, granules) else { return };
        if slot >= self.config.express_slots {
            return self.engine.nack(now, peer, imm, &[]);
        }
        let bits = link.ring.to_vec(nack_offset(&self.config, slot), granules.bytes());
        self.engine.nack(now, peer, imm, &granules.decode(&bits));
    }

    fn granules(&self, peer: Rank) -> Option<Granules> {
        let (_, remote) = self.remote(peer)?;
        Some(Granules::new(self.mtu.min(remote.mtu), self.config.slot_bytes))
    }

    /// Tells a peer which ranges of its message in a slot are missing.
    pub(super) fn request(&mut self, nic: &mut dyn Rnic, now: Time, to: Rank, slot: u16, imm: u32) {
        let bits = self.granules(to).map(|g| g.encode(self.engine.missing(to, slot)));
        let (Some((link, remote)), Some(bits)) = (self.remote(to), bits) else {
            return self.engine.give_up(now);
        };
        let at = nack_offset(&self.config, slot - self.config.slots);
        let place = Remote { addr: remote.addr + at as u64, rkey: remote.rkey };
        let id = wr_id(WrKind::Send, to, 0);
        let wr = SendWr::new(id, SendOp::WriteImm(place, imm), &[]);
        let wr = SendWr { payload: Payload::Inline(&bits), ..wr };
        if nic.post_send(now, link.qpn, &wr).is_err() {
            self.engine.broken(now, to);
        }
    }

    /// Writes a range that a peer is missing into its slot.
    pub(super) fn repair(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (to, slot, offset): (Rank, u16, u32),
        (op, src): (OpId, Span),
        imm: Option<u32>,
    ) {
        let (Some((link, remote)), Some(sge)) = (self.remote(to), self.sge(op, src)) else {
            return self.engine.give_up(now);
        };
        let mut place = remote.slot(slot);
        place.addr += u64::from(offset);
        let send = match imm {
            Some(imm) => SendOp::WriteImm(place, imm),
            None => SendOp::Write(place),
        };
        let sges = [sge];
        let wr = SendWr::new(wr_id(WrKind::Send, to, 0), send, &sges);
        if nic.post_send(now, link.qpn, &wr).is_err() {
            self.engine.broken(now, to);
        }
    }

    /// Sends a message over XP.
    pub(super) fn send_express(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (to, slot): (Rank, u16),
        (op, src): (OpId, Span),
        imm: u32,
        deadline: Time,
    ) {
        let sge = self.sge(op, src).filter(|_| src.len > 0);
        let sges: Vec<_> = sge.into_iter().collect();
        let express = self.remote(to).and_then(|(link, remote)| Some((link.express?, remote)));
        let (Some((express, remote)), true) = (express, sges.len() == usize::from(src.len > 0))
        else {
            return self.engine.give_up(now);
        };
        let id = wr_id(WrKind::ExpressSend, to, slot);
        let wr = SendWr::new(id, SendOp::WriteImm(remote.slot(slot), imm), &sges);
        if nic.post_send(now, express.messages.qpn, &SendWr { deadline, ..wr }).is_err() {
            self.engine.broken(now, to);
        }
    }

    /// Writes a long range that a peer is missing into its slot, over XP.
    pub(super) fn send_bulk(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (to, slot, offset): (Rank, u16, u32),
        (op, src): (OpId, Span),
        imm: u32,
    ) {
        let express = self.remote(to).and_then(|(link, remote)| Some((link.express?, remote)));
        let (Some((express, remote)), Some(sge)) = (express, self.sge(op, src)) else {
            return self.engine.give_up(now);
        };
        let mut place = remote.slot(slot);
        place.addr += u64::from(offset);
        let sges = [sge];
        let id = wr_id(WrKind::ExpressSend, to, first_repair_slot(&self.config));
        let wr = SendWr::new(id, SendOp::WriteImm(place, imm), &sges);
        if nic.post_send(now, express.repairs.qpn, &wr).is_err() {
            self.engine.broken(now, to);
        }
    }

    /// Retransmits what is not acknowledged over RC.
    pub(super) fn resend(&mut self, nic: &mut dyn Rnic, now: Time, to: Rank) {
        if let Some((link, _)) = self.remote(to) {
            // A queue pair that has failed reports it with a completion.
            let _ = nic.resend(now, link.qpn);
        }
    }

    /// Posts the next receive over XP.
    pub(super) fn open(&mut self, nic: &mut dyn Rnic, now: Time, from: Rank, slot: u16) {
        let Some(end) = self.express_of(from, slot) else { return };
        let id = wr_id(WrKind::ExpressRecv, from, slot);
        if nic.post_recv(end.qpn, &RecvWr::new(id, &[])).is_err() {
            self.engine.give_up(now);
        }
    }

    /// Makes a receive over XP end.
    pub(super) fn end(&mut self, nic: &mut dyn Rnic, now: Time, from: Rank, slot: u16, at: Time) {
        let Some(end) = self.express_of(from, slot) else { return };
        let id = wr_id(WrKind::ExpressRecv, from, slot);
        // If there is no such receive, it has ended, and its completion is pending.
        let _ = nic.hasten_recv(now, end.qpn, id, at);
    }

    /// The end that a receive belongs to.
    fn express_of(&self, peer: Rank, slot: u16) -> Option<ExpressEnd> {
        let express = self.links.get(peer as usize)?.as_ref()?.express?;
        let is_repair = slot >= first_repair_slot(&self.config);
        Some(if is_repair { express.repairs } else { express.messages })
    }
}
