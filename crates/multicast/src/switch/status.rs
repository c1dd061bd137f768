//! What a switch reports to an operator about its groups, and the operator's commands.

use core::net::IpAddr;

use bowline_link::Time;
use bowline_wire::{Psn, Qpn};
use thiserror::Error;

use super::Switch;
use crate::root::Out;
use crate::table::{GroupKey, Policy};

/// A group, as a switch sees it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Which group it is.
    pub key: GroupKey,
    /// Version of its table.
    pub epoch: u64,
    /// The root's state, if this switch is the group's root; `None` if it only replicates.
    pub root: Option<RootStatus>,
    /// Where copies go. There may be another switch behind a branch.
    pub branches: Vec<IpAddr>,
}

/// What the root of a group knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootStatus {
    /// How members that fail or fall behind are treated.
    pub policy: Policy,
    /// Nothing more is acknowledged.
    pub has_failed: bool,
    /// Packets that were sent and not acknowledged to the sender. `None` while that is unknown,
    /// after a restart.
    pub outstanding: Option<u32>,
    /// The PSN after the last that the sender has sent, as far as this switch has seen.
    pub next_psn: Option<Psn>,
    /// The members, evicted ones included.
    pub members: Vec<MemberStatus>,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member ID.
    pub id: Qpn,
    /// Where it is.
    pub addr: IpAddr,
    /// Whether it is still a member.
    pub is_live: bool,
    /// Packets that were sent and that it has not acknowledged; `None` if it has not responded yet.
    pub lag: Option<u32>,
    /// It lacks packets, and no other member lacks more: the sender waits for it.
    pub holds_back: bool,
}

/// Why a member cannot be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EvictError {
    /// The switch does not know the group.
    #[error("there is no group {} of {}: `bowline group ls` lists them", .0.id, .0.sender)]
    NoGroup(GroupKey),
    /// It only replicates.
    #[error("this switch only copies for the group: its sender knows the members")]
    NoRoot,
    /// No live member has this ID.
    #[error("no live member has ID {0}: `bowline group ls` lists them")]
    NoMember(Qpn),
    /// The group would fail for lack of members.
    #[error("the group would have too few members: its policy needs {0}")]
    TooFew(usize),
}

impl Switch {
    /// All groups, by sender and ID.
    pub fn groups(&self) -> impl Iterator<Item = GroupStatus> {
        let groups = self.by_key.values().filter_map(|slot| self.groups[*slot].as_ref());
        groups.map(|group| GroupStatus {
            key: group.key,
            epoch: group.epoch,
            root: group.root.as_ref().map(|root| root.status()),
            branches: group.branches.iter().map(|branch| branch.dst()).collect(),
        })
    }

    /// Removes a member from a group on request. Completions from now on do not cover it.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn evict(&mut self, now: Time, key: &GroupKey, member: Qpn) -> Result<(), EvictError> {
        let slot = *self.by_key.get(key).ok_or(EvictError::NoGroup(*key))?;
        let group = self.groups[slot].as_mut().ok_or(EvictError::NoGroup(*key))?;
        let root = group.root.as_mut().ok_or(EvictError::NoRoot)?;
        let mut out = Out {
            answers: &mut self.answers,
            events: &mut self.events,
            counters: &mut self.counters,
        };
        root.evict_by_order(member, &mut out)?;
        self.arm(slot, now);
        Ok(())
    }
}
