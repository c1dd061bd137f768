//! Messages to all members of a multicast group.
//!
//! Members are ordinary receivers. What repairs a loss at one of them repairs another's at another: parity is the same
//! for all, and a chunk that is sent again reaches everybody who lacks it.

use bowline_nic::{AddressVector, PdId, Rnic, Time};

use super::ReliableQp;
use super::config::{ReliableConfig, ReliableInfo};
use crate::error::SdrError;
use crate::qp::{GroupPath, SdrQp};

impl ReliableQp {
    /// Makes a QP that writes to the members of a group. A write is over when all of them have it.
    pub fn for_group(
        nic: &mut dyn Rnic,
        pd: PdId,
        config: &ReliableConfig,
        members: usize,
    ) -> Result<ReliableQp, SdrError> {
        config.check()?;
        let sdr = SdrQp::for_group(nic, pd, &config.sdr_config(), members)?;
        Ok(ReliableQp::over(sdr, pd, config))
    }

    /// What a member of the group needs to know to connect.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn info_for(&self, member: usize) -> ReliableInfo {
        ReliableInfo::new(&self.config, self.sdr.info_for(member))
    }

    /// Connects to the members of a group, in their order, each at its address; see [`SdrQp::connect_group`].
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
}
