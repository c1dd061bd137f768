//! Handles the members' responses.

use bowline_link::Time;
use bowline_wire::{Aeth, NakCode, Opcode, PacketView, Psn, Syndrome};

use super::{Cause, Out, Root};
use crate::answer::{Answer, Arrival};
use crate::table::Policy;

impl Root {
    /// Handles a packet that is addressed to a member ID.
    pub(crate) fn on_answer(
        &mut self,
        now: Time,
        member: usize,
        frame: &Arrival<'_>,
        packet: &PacketView<'_>,
        out: &mut Out<'_>,
    ) {
        let Some(record) = self.records.get(member) else { return };
        if frame.flow.src != self.members[member].config.addr {
            out.counters.drop_source += 1;
            return;
        }
        if !frame.check_icrc(packet, out.counters) {
            return;
        }
        if !record.is_live || self.failed.is_some() {
            out.counters.drop_evicted += 1;
            return;
        }
        match (packet.opcode(), packet.aeth()) {
            (Opcode::CNP, _) => self.on_cnp(now, out),
            (Opcode::RC_ACK, Some(aeth)) => {
                self.on_acknowledge(member, packet.psn(), aeth, out);
                self.watch(now);
            }
            _ => out.counters.drop_opcode += 1,
        }
    }

    fn on_cnp(&mut self, now: Time, out: &mut Out<'_>) {
        out.counters.cnps_in += 1;
        let interval = self.config.cnp_interval_ns;
        if self.last_cnp.is_some_and(|last| now.nanos_since(last) < interval) {
            return;
        }
        self.last_cnp = Some(now);
        out.counters.cnps_out += 1;
        out.answers.push_back(Answer::cnp(self.to_sender(), self.config.sender_qpn));
    }

    fn on_acknowledge(&mut self, member: usize, psn: Psn, aeth: Aeth, out: &mut Out<'_>) {
        // No member responds to what was not sent; and a switch that has seen nothing cannot tell.
        if self.sent_end.is_none_or(|end| !psn.before(end)) {
            out.counters.drop_ahead += 1;
            return;
        }
        let (acked, is_nak) = match aeth.syndrome {
            Syndrome::Ack { .. } => (psn, false),
            Syndrome::Rnr { .. } | Syndrome::Nak(_) => (psn.sub(1), true),
            Syndrome::Reserved(_) => {
                out.counters.drop_malformed += 1;
                return;
            }
        };
        // The paper's rule overwrites records, but not with what all members are known to have.
        // Before anything is known, the last response counts: the first may have been forged.
        let record = self.records[member].acked.filter(|_| self.told.is_some());
        let floor = if self.is_sparing() { record } else { self.told };
        if floor.is_some_and(|floor| acked.before(floor)) {
            out.counters.drop_stale += 1;
            return;
        }
        self.note_record(member, acked, is_nak, aeth.msn);
        if !self.view().is_plausible() {
            // Some response was forged. The members' next responses will tell.
            out.counters.drop_stale += 1;
            return;
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.on_ack(member, out),
            Syndrome::Rnr { timer } => self.on_rnr(member, psn, timer, out),
            Syndrome::Nak(NakCode::PsnSequence) => self.on_nak(member, psn, out),
            Syndrome::Nak(code) => self.on_refusal(member, code, out),
            Syndrome::Reserved(_) => {}
        }
    }

    fn note_record(&mut self, member: usize, acked: Psn, is_nak: bool, msn: u32) {
        let old = self.records[member].acked;
        let known = old.filter(|_| self.told.is_some());
        let new = self.config.merge.record(known, acked, is_nak);
        if new == old {
            return;
        }
        self.records[member].acked = new;
        let member = &mut self.members[member];
        member.msn = member.msn_base.wrapping_add(msn);
        member.behind_since = None;
        member.rnr = None;
    }

    fn on_ack(&mut self, member: usize, out: &mut Out<'_>) {
        out.counters.acks_in += 1;
        if let Some(psn) = self.config.merge.acknowledge(&self.view(), member) {
            self.tell_ack(psn, out);
        }
    }

    fn on_nak(&mut self, member: usize, psn: Psn, out: &mut Out<'_>) {
        out.counters.naks_in += 1;
        if self.is_missed(psn) {
            return self.evict(member, Cause::Missed, out);
        }
        let Some(from) = self.config.merge.go_back(&self.view(), member, psn) else { return };
        if self.is_sparing() && self.asked == Some(from) {
            return;
        }
        self.note_told(from.sub(1));
        self.asked = Some(from);
        out.counters.naks_out += 1;
        self.answer(Syndrome::Nak(NakCode::PsnSequence), from, out);
        // The NAK also acknowledges: a pending refusal may have waited for that.
        self.tell_refusal(out);
    }

    fn on_rnr(&mut self, member: usize, psn: Psn, timer: u8, out: &mut Out<'_>) {
        out.counters.rnrs_in += 1;
        if self.is_sparing() {
            self.members[member].rnr = Some(timer);
            self.raise(out);
            return self.settle_rnr(out);
        }
        if let Some(from) = self.config.merge.go_back(&self.view(), member, psn) {
            self.note_told(from.sub(1));
            self.tell_rnr(from, timer, out);
        }
    }

    /// Tells the sender to wait for a member without a receive, if the group waits for nothing
    /// else. Earlier, other members would wait needlessly.
    pub(super) fn settle_rnr(&mut self, out: &mut Out<'_>) {
        let Some(told) = self.told else { return };
        while let Some(member) = self.missed_rnr(told) {
            self.members[member].rnr = None;
            self.evict(member, Cause::Missed, out);
        }
        let mut timer = None;
        for (member, record) in self.members.iter_mut().zip(&self.records) {
            if record.is_live && record.acked == Some(told) {
                // It repeats the RNR NAK each time that the packet arrives.
                timer = member.rnr.take().or(timer);
            }
        }
        if let Some(timer) = timer
            && self.failed.is_none()
            && self.asked != Some(told.next())
        {
            self.tell_rnr(told.next(), timer, out);
        }
    }

    /// A member without a receive for a packet that the sender will not retransmit.
    fn missed_rnr(&self, told: Psn) -> Option<usize> {
        let is_missed = |index: &usize| {
            let record = self.records[*index];
            record.is_live
                && self.members[*index].rnr.is_some()
                && record.acked.is_some_and(|acked| acked.before(told))
        };
        let mut members = 0..self.members.len();
        // Without a quorum, all members have what was acknowledged.
        matches!(self.config.policy, Policy::Quorum { .. }).then(|| members.find(is_missed))?
    }

    fn tell_rnr(&mut self, psn: Psn, timer: u8, out: &mut Out<'_>) {
        self.asked = Some(psn);
        out.counters.rnrs_out += 1;
        self.answer(Syndrome::Rnr { timer }, psn, out);
    }

    fn on_refusal(&mut self, member: usize, code: NakCode, out: &mut Out<'_>) {
        if matches!(code, NakCode::InvalidRdRequest | NakCode::Reserved(_)) {
            out.counters.drop_malformed += 1;
            return;
        }
        if self.told.is_none() {
            // A forger cannot be told from the member yet. A member that has refused is silent from
            // now on.
            out.counters.drop_stale += 1;
            return;
        }
        out.counters.refusals_in += 1;
        self.raise(out);
        match self.config.policy {
            Policy::Fail => self.fail(member, code, Cause::Refused(code), out),
            _ => self.evict(member, Cause::Refused(code), out),
        }
    }

    /// Whether the sender has discarded a packet, because a quorum has it.
    fn is_missed(&self, psn: Psn) -> bool {
        matches!(self.config.policy, Policy::Quorum { .. })
            && self.told.is_some_and(|told| !told.before(psn))
    }
}
