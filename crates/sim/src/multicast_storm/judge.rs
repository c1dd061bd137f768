//! The rules for completions and memory.

use bowline_multicast::Policy;
use bowline_nic::{Completion, WcStatus};

use super::group::{Group, Member, RETRIES_NS, State, place_of};
use super::report::MulticastCoverage;
use super::scenario::Kind;
use crate::check::pattern;

impl Group<'_> {
    /// Whether a member has a message: its bytes, and its receive if it takes one.
    fn has(&self, member: &Member, message: usize, seed: u64) -> Result<(), String> {
        let plan = self.plan.messages[message];
        if plan.kind.takes_receive() {
            let before = member.receivable(&self.plan.messages[..message]).count();
            if member.received <= before {
                return Err(format!("{} receives have completed", member.received));
            }
        }
        let there = member.memory.read(place_of(message), plan.len.into());
        match pattern::first_difference(&self.bytes_of(message, seed), &there) {
            Some(difference) => Err(difference),
            None => Ok(()),
        }
    }

    /// A request has completed: all members that the completion covers must have it.
    pub(super) fn judge_success(
        &self,
        message: usize,
        seed: u64,
        coverage: &mut MulticastCoverage,
    ) -> Result<(), String> {
        if self.plan.messages[message].kind.is_crime() {
            return Err("a request that no group carries has succeeded".to_owned());
        }
        let joined = self.members.iter().enumerate();
        let joined = joined.filter(|(_, m)| m.state != State::Waiting && m.joined <= message);
        if let Policy::Quorum { k, .. } = self.plan.policy {
            let having = joined.filter(|(_, m)| self.has(m, message, seed).is_ok()).count();
            coverage.found += having as u64;
            return if having >= k { Ok(()) } else { Err(format!("{having} of {k} have it")) };
        }
        for (number, member) in joined.filter(|(_, member)| member.state == State::Active) {
            let lacks = |what| format!("member {number} lacks it: {what}");
            self.has(member, message, seed).map_err(lacks)?;
            coverage.found += 1;
        }
        Ok(())
    }

    /// A request has failed: there must be a reason.
    pub(super) fn judge_failure(
        &self,
        message: usize,
        status: WcStatus,
        is_calm: bool,
        coverage: &mut MulticastCoverage,
    ) -> Result<(), String> {
        let kind = self.plan.messages[message].kind;
        match status {
            WcStatus::RemInvReqErr if matches!(kind, Kind::Read | Kind::FetchAdd) => {
                coverage.refused += 1;
            }
            WcStatus::RemAccessErr if kind == Kind::WriteBeyond => coverage.refused += 1,
            WcStatus::RemOpErr | WcStatus::RemAccessErr if self.failed_by_policy => {
                coverage.failed += 1;
            }
            WcStatus::RetryExcErr if !is_calm => self.note_timeout(coverage),
            _ => return Err(format!("failed with {status} and no reason")),
        }
        Ok(())
    }

    /// The sender's retries have run out.
    fn note_timeout(&self, coverage: &mut MulticastCoverage) {
        let is_gone = |member: &Member| member.is_dead || member.is_broken;
        let needed = self.members.iter().filter(|member| member.state == State::Active);
        let patience = match self.plan.policy {
            Policy::Fail => None,
            Policy::Evict { after_ns, .. } | Policy::Quorum { after_ns, .. } => Some(after_ns),
        };
        let count = match (needed.into_iter().any(is_gone), patience) {
            (true, None) => &mut coverage.timed_out_failing,
            (true, Some(after_ns)) if after_ns > RETRIES_NS => &mut coverage.timed_out_patient,
            _ if coverage.restarts > 0 => &mut coverage.timed_out_restarted,
            _ => &mut coverage.timed_out_lost,
        };
        *count += 1;
    }

    /// A receive of a member has completed: it must be the next one, with what was sent.
    pub(super) fn judge_receive(
        &self,
        member: &Member,
        completion: &Completion,
        seed: u64,
    ) -> Result<(), String> {
        let Some((index, plan)) = member.receivable(&self.plan.messages).nth(member.received)
        else {
            return Err("a receive more than there are messages".to_owned());
        };
        if completion.wr_id != index as u64 {
            return Err(format!("receive of message {}, not of {index}", completion.wr_id));
        }
        if completion.imm != plan.kind.imm() || completion.byte_len != plan.len {
            let (imm, len) = (completion.imm, completion.byte_len);
            return Err(format!("message {index} with {len} bytes and immediate {imm:?}"));
        }
        let there = member.memory.read(place_of(index), plan.len.into());
        let difference = pattern::first_difference(&self.bytes_of(index, seed), &there);
        difference.map_or(Ok(()), |what| Err(format!("message {index}: {what}")))
    }

    /// At quiescence: members have what they must have, and nothing outside of the slots has
    /// changed.
    pub(super) fn judge_rest(&self, seed: u64, had_restarts: bool) -> Result<(), String> {
        // A switch that has forgotten who lags behind a quorum notices only with the next request.
        let is_forgotten = had_restarts && matches!(self.plan.policy, Policy::Quorum { .. });
        for (number, member) in self.members.iter().enumerate() {
            // A quorum has all of them, and the switch has reported that the group failed for lack
            // of others.
            let has_failed = self.failed.is_some() || self.failed_by_policy;
            let must_have = member.state == State::Active && !has_failed && !is_forgotten;
            for (index, plan) in self.plan.messages.iter().enumerate() {
                if must_have && !member.is_dead && !member.is_broken && index >= member.joined {
                    let lacks = |what| format!("member {number} lacks message {index}: {what}");
                    self.has(member, index, seed).map_err(lacks)?;
                }
                let (place, len) = (place_of(index), u64::from(plan.len));
                if index < member.joined || plan.kind.is_crime() {
                    let untouched = member.memory.untouched(place, len);
                    let there = member.memory.read(place, len);
                    if let Some(what) = pattern::first_difference(&untouched, &there) {
                        return Err(format!("member {number} has what is not for it: {what}"));
                    }
                }
                member.memory.restore(place, len);
            }
            member.memory.check().map_err(|what| format!("member {number}: {what}"))?;
        }
        for (index, plan) in self.plan.messages.iter().enumerate() {
            self.source.restore(index, plan.len.into());
        }
        self.source.check().map_err(|what| format!("sender: {what}"))
    }
}
