//! Members that fall behind or fail.

use bowline_link::Time;
use bowline_wire::{NakCode, Psn, Qpn, Syndrome};

use super::{Cause, Event, Out, Root};
use crate::switch::EvictError;

impl Root {
    /// Records which members are behind others, and since when.
    pub(super) fn watch(&mut self, now: Time) {
        if self.config.policy.patience_ns().is_none() {
            return;
        }
        let live = || self.records.iter().filter(|record| record.is_live);
        let later = |a: Psn, b: Psn| if b.after(a) { b } else { a };
        // The member that was ahead may have left, and what it had is acknowledged.
        let first = live().filter_map(|record| record.acked).chain(self.told).reduce(later);
        for (member, record) in self.members.iter_mut().zip(&self.records) {
            let is_behind = first
                .is_some_and(|first| record.acked.is_none_or(|acked| acked.before(first)))
                && record.is_live;
            let since = member.behind_since.unwrap_or(now);
            member.behind_since = is_behind.then_some(since);
        }
    }

    /// When to call [`Root::on_timeout`].
    pub(crate) fn deadline(&self) -> Option<Time> {
        let patience = self.config.policy.patience_ns().filter(|_| self.failed.is_none())?;
        let since = self.members.iter().filter_map(|member| member.behind_since).min()?;
        Some(since.plus_nanos(patience))
    }

    /// Evicts members whose time is up.
    pub(crate) fn on_timeout(&mut self, now: Time, out: &mut Out<'_>) {
        while let Some(deadline) = self.deadline()
            && deadline <= now
        {
            let late = self.members.iter().position(|member| {
                let patience = self.config.policy.patience_ns().unwrap_or(u64::MAX);
                member.behind_since.is_some_and(|since| since.plus_nanos(patience) <= now)
            });
            let Some(late) = late else { return };
            self.members[late].behind_since = None;
            self.evict(late, Cause::Behind, out);
        }
        self.watch(now);
    }

    /// A member leaves on an operator's request. The group does not fail because of that.
    pub(crate) fn evict_by_order(&mut self, id: Qpn, out: &mut Out<'_>) -> Result<(), EvictError> {
        let member = self.index_of(id).filter(|member| self.records[*member].is_live);
        let member = member.ok_or(EvictError::NoMember(id))?;
        let least = self.config.policy.least();
        if self.live() <= least || self.failed.is_some() {
            return Err(EvictError::TooFew(least));
        }
        self.evict(member, Cause::Ordered, out);
        Ok(())
    }

    /// A member leaves, or the group fails for lack of members.
    pub(super) fn evict(&mut self, member: usize, cause: Cause, out: &mut Out<'_>) {
        if self.live() <= self.config.policy.least() {
            return self.fail(member, NakCode::RemoteOperational, cause, out);
        }
        self.records[member].is_live = false;
        self.members[member].behind_since = None;
        out.counters.evicted += 1;
        out.events.push_back(Event::Evicted {
            group: self.key,
            member: self.members[member].config.id,
            acked: self.records[member].acked,
            cause,
        });
        self.raise(out);
        self.settle_rnr(out);
    }

    /// Nothing more is acknowledged.
    pub(super) fn fail(&mut self, member: usize, code: NakCode, cause: Cause, out: &mut Out<'_>) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(code);
        out.counters.failed += 1;
        let member = self.members[member].config.id;
        out.events.push_back(Event::Failed { group: self.key, member, cause });
        self.tell_failure(out);
    }

    /// Tells the sender that the group has failed. While the members' state is unknown the root
    /// stays silent: any response would acknowledge something.
    pub(super) fn tell_failure(&self, out: &mut Out<'_>) {
        if let (Some(code), Some(told)) = (self.failed, self.told) {
            out.counters.refusals_out += 1;
            self.answer(Syndrome::Nak(code), told.next(), out);
        }
    }
}
