//! Messages to all members of a multicast group.
//!
//! Members are ordinary receivers. One repair can fix different losses at different members: parity
//! is the same for all, and a retransmitted chunk reaches every member that lacks it.

use bowline_nic::{AddressVector, PdId, Rnic, Time};

use super::config::{ReliableConfig, ReliableInfo};
use super::event::Failure;
use super::{ReliableQp, slot};
use crate::error::SdrError;
use crate::qp::{GroupPath, SdrQp};

impl ReliableQp {
    /// Creates a QP that writes to the members of a group. A write is over when all have it.
    pub fn for_group(
        nic: &mut dyn Rnic,
        pd: PdId,
        config: &ReliableConfig,
        members: usize,
    ) -> Result<ReliableQp, SdrError> {
        config.check()?;
        let sdr = SdrQp::for_group(nic, pd, &config.sdr_config(), members)?;
        Ok(ReliableQp { in_group: true, ..ReliableQp::over(sdr, pd, config) })
    }

    /// What a member of the group needs to know to connect.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn info_for(&self, member: usize) -> ReliableInfo {
        ReliableInfo::new(&self.config, self.sdr.info_for(member))
    }

    /// Connects to the members of a group, in their order, each at its address; see
    /// [`SdrQp::connect_group`].
    pub fn connect_group(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        path: &GroupPath,
        members: &[(AddressVector, ReliableInfo)],
    ) -> Result<(), SdrError> {
        let mut peers = Vec::with_capacity(members.len());
        for (av, peer) in members {
            peers.push((*av, peer.check_against(&self.config)?.clone()));
        }
        self.sdr.connect_group(nic, now, path, &peers)
    }

    /// Continues without a member: messages are over when all others have them. The last member
    /// stays.
    pub fn evict(&mut self, nic: &mut dyn Rnic, now: Time, member: usize) -> Result<(), SdrError> {
        self.sdr.evict(member)?;
        for id in self.first_out..self.first_out + self.outgoing.len() as u64 {
            self.finish_at(nic, now, id, member);
        }
        self.is_aware(member, |_| true);
        self.start_cleared(nic, now);
        Ok(())
    }

    /// The members that were not evicted, as a bit set.
    pub fn live_members(&self) -> u64 {
        self.sdr.live_members()
    }

    /// Fails the messages that a member lacks if it has been silent for the timeout. Every member
    /// is probed often while a message waits for a receive or for its last chunks, and answers as
    /// long as it lives. So a member that has not posted a receive is waited for, and a dead one is
    /// not.
    pub(super) fn on_silence(&mut self, nic: &mut dyn Rnic, now: Time) {
        let Some(oldest) = self.outgoing.front().and_then(Option::as_ref) else { return };
        let (posted, timeout) = (oldest.posted, self.config.timeout_ns);
        if !self.in_group || now.nanos_since(posted) < timeout {
            return;
        }
        let is_silent = |member: &usize| {
            let heard = self.sdr.last_heard(*member).map_or(posted, |at| at.max(posted));
            self.live_members() >> member & 1 != 0 && now.nanos_since(heard) >= timeout
        };
        let Some(member) = (0..self.sdr.members()).find(is_silent) else { return };
        for id in self.first_out..self.first_out + self.outgoing.len() as u64 {
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            if message.lacking >> member & 1 != 0 {
                self.finish_out(nic, now, id, Err(Failure::MemberTimedOut(member)));
            }
        }
    }
}
