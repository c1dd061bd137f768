//! Handles the sender's packets.

use bowline_link::Time;
use bowline_wire::{NakCode, PacketView, Psn};

use super::{Out, Refusal, Root};
use crate::answer::Arrival;
use crate::merge::MAX_AHEAD;

/// Consecutive packets further away than that before the root doubts its state.
const MAX_STRAYS: u32 = 16;

impl Root {
    /// Handles a packet of the sender, which is either supported or to be refused. Returns the
    /// branches that get a copy.
    pub(crate) fn on_data(
        &mut self,
        now: Time,
        frame: &Arrival<'_>,
        packet: &PacketView<'_>,
        carried: Result<(), NakCode>,
        out: &mut Out<'_>,
    ) -> u64 {
        let psn = packet.psn();
        if self.failed.is_some() {
            out.counters.drop_refused += 1;
            self.tell_failure(out);
            return 0;
        }
        if self.refusal.is_some_and(|refusal| !psn.before(refusal.psn)) {
            out.counters.drop_refused += 1;
            self.tell_refusal(out);
            return 0;
        }
        let carried = if packet.payload().len() > self.config.mtu as usize {
            Err(NakCode::InvalidRequest)
        } else {
            carried
        };
        if let Err(code) = carried {
            self.refuse(frame, packet, code, out);
            return 0;
        }
        let is_sent = self.sent_end.is_some_and(|end| psn.before(end));
        if !self.note_sent(frame, packet, out) {
            return 0;
        }
        self.trunk.note(psn, is_sent && self.told.map(Psn::next) == Some(psn));
        if self.asked == Some(psn) {
            self.asked = None;
        }
        if self.is_sparing()
            && self.told.is_some_and(|told| !told.before(psn))
            && (packet.ack_req() || self.told == Some(psn))
        {
            self.repeat_ack(out);
        }
        self.watch(now);
        self.branches_lacking(psn, out)
    }

    /// Records how far the sender has got. A jump is accepted only if the whole packet is intact,
    /// and no further than a sender can be ahead of its acknowledgements.
    fn note_sent(
        &mut self,
        frame: &Arrival<'_>,
        packet: &PacketView<'_>,
        out: &mut Out<'_>,
    ) -> bool {
        let psn = packet.psn();
        if self.told.is_some_and(|told| psn.diff(told).abs() > MAX_AHEAD) {
            self.note_stray(frame, packet, out);
            return false;
        }
        self.strays = 0;
        match self.sent_end.map(|end| psn.diff(end)) {
            Some(ahead) if ahead < 0 => return true,
            Some(0) => {}
            _ if !frame.check_icrc(packet, out.counters) => return false,
            _ => {}
        }
        self.sent_end = Some(psn.next());
        true
    }

    /// A packet far from the known state. A single one is taken for a forgery. Many in a row,
    /// without one that fits, mean that a forgery was accepted after a restart: then the state is
    /// discarded, and members have to respond again.
    fn note_stray(&mut self, frame: &Arrival<'_>, packet: &PacketView<'_>, out: &mut Out<'_>) {
        out.counters.drop_ahead += 1;
        // A root that has known the group from its beginning need not doubt its state.
        if self.config.first_psn.is_some() || !frame.check_icrc(packet, out.counters) {
            return;
        }
        self.strays += 1;
        if self.strays >= MAX_STRAYS {
            self.forget();
        }
    }

    /// A request that groups do not support. It is refused once everything before it is
    /// acknowledged, and nothing after it is copied.
    fn refuse(
        &mut self,
        frame: &Arrival<'_>,
        packet: &PacketView<'_>,
        code: NakCode,
        out: &mut Out<'_>,
    ) {
        out.counters.drop_refused += 1;
        let psn = packet.psn();
        // If packets before it are missing, the sender will retransmit it. And while the members'
        // state is unknown, it may be forged.
        let is_next = self.told.is_some() && self.sent_end == Some(psn);
        if is_next && frame.check_icrc(packet, out.counters) {
            self.sent_end = Some(psn.next());
            self.refusal = Some(Refusal { psn, code });
            self.tell_refusal(out);
        }
    }

    /// An acknowledgement was lost: responds in place of the members, which all have the packet.
    fn repeat_ack(&mut self, out: &mut Out<'_>) {
        if let Some(told) = self.told {
            out.counters.acks_repeated += 1;
            out.counters.acks_out += 1;
            self.answer(crate::answer::ACK, told, out);
        }
    }

    /// Branches with members that lack a packet.
    fn branches_lacking(&self, psn: Psn, out: &mut Out<'_>) -> u64 {
        let is_sparing = self.is_sparing();
        let (mut lacking, mut live, mut all) = (0_u64, 0_u64, 0_u64);
        for (member, record) in self.members.iter().zip(&self.records) {
            let branch = 1 << member.config.branch;
            all |= branch;
            let has = is_sparing && record.acked.is_some_and(|acked| !acked.before(psn));
            if record.is_live {
                live |= branch;
                lacking |= if has { 0 } else { branch };
            }
        }
        out.counters.filtered += u64::from((all & !lacking).count_ones());
        self.trunk.branches(self.config.trunk, lacking, live)
    }
}
