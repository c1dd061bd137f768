//! The root of a group: its state of the sender and of each member, and what it reports to the
//! sender.

mod answers;
mod data;
mod policy;
#[cfg(test)]
mod tests;
mod trunk;

use std::collections::VecDeque;

use bowline_link::Time;
use bowline_wire::{Aeth, FlowKey, NakCode, Psn, Qpn, Syndrome};

use crate::answer::{ACK, Answer};
use crate::counters::Counters;
use crate::merge::{Record, Records};
use crate::switch::{MemberStatus, RootStatus};
use crate::table::{GroupKey, InvalidTable, MemberConfig, Policy, RootConfig};
use trunk::Trunk;

/// An event for the application or an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member was removed. Completions from now on do not cover it.
    Evicted {
        /// The group.
        group: GroupKey,
        /// The member ID.
        member: Qpn,
        /// Last PSN that it has acknowledged, if it has responded at all.
        acked: Option<Psn>,
        /// Why.
        cause: Cause,
    },
    /// The group has failed: nothing more is acknowledged, and the sender is told.
    Failed {
        /// The group.
        group: GroupKey,
        /// The ID of the member whose loss made the group fail.
        member: Qpn,
        /// Why.
        cause: Cause,
    },
}

/// Why a member cannot stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It refused a request.
    Refused(NakCode),
    /// Others were ahead of it, and it made no progress.
    Behind,
    /// It lacks a packet that the sender has discarded, since enough others have it.
    Missed,
    /// An operator removed it.
    Ordered,
}

/// Where a root puts its output.
pub(crate) struct Out<'a> {
    pub(crate) answers: &'a mut VecDeque<Answer>,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut Counters,
}

#[derive(Debug)]
struct Member {
    config: MemberConfig,
    /// Messages that it has completed, counted as the group does.
    msn: u32,
    /// Messages of the group before it joined.
    msn_base: u32,
    /// It has no receive for the packet after its record, and asks to wait this long.
    rnr: Option<u8>,
    /// Since when others have been ahead of it without any progress of its own.
    behind_since: Option<Time>,
}

impl Member {
    fn new(config: MemberConfig, msn_base: u32) -> Member {
        Member { config, msn: msn_base, msn_base, rnr: None, behind_since: None }
    }
}

/// A request that groups do not support.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    psn: Psn,
    code: NakCode,
}

/// The state of a group at its root.
#[derive(Debug)]
pub(crate) struct Root {
    key: GroupKey,
    config: RootConfig,
    members: Vec<Member>,
    /// Parallel to `members`.
    records: Vec<Record>,
    /// Last PSN acknowledged to the sender.
    told: Option<Psn>,
    told_msn: u32,
    /// The PSN after the last that the sender has sent, as far as this switch has seen. `None` only
    /// as long as `told` is.
    sent_end: Option<Psn>,
    /// Consecutive packets of the sender that do not fit the known state.
    strays: u32,
    /// The PSN that the sender was asked to go back to, and has not retransmitted yet.
    asked: Option<Psn>,
    refusal: Option<Refusal>,
    failed: Option<NakCode>,
    last_cnp: Option<Time>,
    trunk: Trunk,
}

impl Root {
    pub(crate) fn new(key: GroupKey, config: RootConfig) -> Root {
        let told = config.first_psn.map(|first| first.sub(1));
        Root {
            key,
            members: config.members.iter().map(|member| Member::new(*member, 0)).collect(),
            records: vec![Record { acked: told, is_live: true }; config.members.len()],
            told,
            told_msn: 0,
            sent_end: config.first_psn,
            strays: 0,
            asked: None,
            refusal: None,
            failed: None,
            last_cnp: None,
            trunk: Trunk::default(),
            config,
        }
    }

    /// Whether a table with other members can be installed now.
    pub(crate) fn check_update(&self, config: &RootConfig) -> Result<(), InvalidTable> {
        let is_new = |member: &MemberConfig| self.index_of(member.id).is_none();
        let is_drained = match (self.told, self.sent_end) {
            (Some(told), Some(end)) => told.next() == end,
            // Nothing is known, and the new member has to respond like all others.
            _ => true,
        };
        if !is_drained && config.members.iter().any(is_new) {
            return Err(InvalidTable::NotDrained);
        }
        Ok(())
    }

    /// Installs a table with other members. Records of those that stay are kept.
    pub(crate) fn update(&mut self, now: Time, config: RootConfig, out: &mut Out<'_>) {
        let mut members = Vec::with_capacity(config.members.len());
        let mut records = Vec::with_capacity(config.members.len());
        for member in &config.members {
            let (kept, record) = match self.index_of(member.id) {
                Some(index) => {
                    let Member { msn, msn_base, rnr, behind_since, .. } = self.members[index];
                    let new = Member::new(*member, msn_base);
                    (Member { msn, rnr, behind_since, ..new }, self.records[index])
                }
                None => {
                    let record = Record { acked: self.told, is_live: true };
                    (Member::new(*member, self.told_msn), record)
                }
            };
            members.push(kept);
            records.push(record);
        }
        let first_psn = self.config.first_psn;
        (self.members, self.records) = (members, records);
        // The starting PSN does not change.
        self.config = RootConfig { first_psn, ..config };
        self.raise(out);
        self.watch(now);
    }

    /// Resets to the state after a restart: members have to respond before anything is
    /// acknowledged.
    fn forget(&mut self) {
        (self.told, self.sent_end, self.asked, self.refusal) = (None, None, None, None);
        self.strays = 0;
        for (member, record) in self.members.iter_mut().zip(&mut self.records) {
            record.acked = None;
            member.rnr = None;
            member.behind_since = None;
        }
    }

    pub(crate) fn answers_to(&self) -> core::net::IpAddr {
        self.config.answers_to
    }

    pub(crate) fn next_psn(&self) -> Option<Psn> {
        self.sent_end
    }

    pub(crate) fn member_ids(&self) -> impl Iterator<Item = Qpn> {
        self.members.iter().map(|member| member.config.id)
    }

    /// The record of each member, by member ID.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Qpn, Record)> {
        self.member_ids().zip(self.records.iter().copied())
    }

    /// The status for an operator.
    pub(crate) fn status(&self) -> RootStatus {
        // The sender's last packet, and how far a member is behind it.
        let behind = |psn: Psn| {
            let last = self.sent_end?.sub(1);
            Some(u32::try_from(last.diff(psn)).unwrap_or(0))
        };
        let live = || self.records.iter().filter(|record| record.is_live);
        // A member that has not responded is the furthest behind.
        let most = live().map(|record| record.acked.and_then(behind).unwrap_or(u32::MAX)).max();
        let members = self.members.iter().zip(&self.records).map(|(member, record)| {
            let lag = record.acked.and_then(behind);
            let holds_back = record.is_live && lag != Some(0) && lag.or(Some(u32::MAX)) == most;
            let MemberConfig { id, addr, .. } = member.config;
            MemberStatus { id, addr, is_live: record.is_live, lag, holds_back }
        });
        RootStatus {
            policy: self.config.policy,
            has_failed: self.failed.is_some(),
            outstanding: self.told.and_then(behind),
            next_psn: self.sent_end,
            members: members.collect(),
        }
    }

    fn index_of(&self, id: Qpn) -> Option<usize> {
        self.members.iter().position(|member| member.config.id == id)
    }

    fn live(&self) -> usize {
        self.records.iter().filter(|record| record.is_live).count()
    }

    fn view(&self) -> Records<'_> {
        let need = match self.config.policy {
            Policy::Quorum { k, .. } => k,
            Policy::Fail | Policy::Evict { .. } => self.live(),
        };
        Records::new(&self.records, self.told, need.max(1))
    }

    fn is_sparing(&self) -> bool {
        self.config.merge.is_sparing()
    }

    /// Acknowledges what enough members have by now, if that is more than before.
    fn raise(&mut self, out: &mut Out<'_>) {
        let reached = self.view().reached();
        if let Some(psn) = reached.filter(|psn| self.told.is_none_or(|told| psn.after(told))) {
            self.tell_ack(psn, out);
        }
    }

    fn tell_ack(&mut self, psn: Psn, out: &mut Out<'_>) {
        self.note_told(psn);
        out.counters.acks_out += 1;
        self.answer(ACK, psn, out);
        self.tell_refusal(out);
        self.settle_rnr(out);
    }

    /// Everything up to `psn` is about to be acknowledged.
    fn note_told(&mut self, psn: Psn) {
        if self.told.is_some_and(|told| !psn.after(told)) {
            return;
        }
        self.told = Some(psn);
        let holder = self.records.iter().position(|r| r.is_live && r.acked == Some(psn));
        if let Some(holder) = holder {
            self.told_msn = self.members[holder].msn;
        }
        if self.asked.is_some_and(|asked| !asked.after(psn)) {
            self.asked = None;
        }
    }

    /// Refuses the unsupported request, once everything before it is acknowledged.
    fn tell_refusal(&mut self, out: &mut Out<'_>) {
        if let (Some(refusal), Some(told)) = (self.refusal, self.told)
            && told.next() == refusal.psn
        {
            out.counters.refusals_out += 1;
            self.answer(Syndrome::Nak(refusal.code), refusal.psn, out);
        }
    }

    fn answer(&self, syndrome: Syndrome, psn: Psn, out: &mut Out<'_>) {
        let aeth = Aeth { syndrome, msn: self.told_msn & 0xff_ffff };
        let answer = Answer::acknowledge(self.to_sender(), self.config.sender_qpn, psn, aeth);
        out.answers.push_back(answer);
    }

    fn to_sender(&self) -> FlowKey {
        let RootConfig { peer, sender_port, .. } = self.config;
        FlowKey { src: peer.addr, dst: self.key.sender, src_port: peer.port, dst_port: sender_port }
    }
}
