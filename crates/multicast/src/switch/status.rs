//! What a switch tells an operator about its groups, and what an operator may ask of it.

use core::net::IpAddr;

use bowline_link::Time;
use bowline_wire::Qpn;
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
    /// What this switch knows as the group's root; `None` if it only copies.
    pub root: Option<RootStatus>,
    /// Where copies go. Behind a branch may be another switch.
    pub branches: Vec<IpAddr>,
}

/// What the root of a group knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootStatus {
    /// What happens to members that fail or fall behind.
    pub policy: Policy,
    /// Nothing more is acknowledged.
    pub has_failed: bool,
    /// Packets that were sent and that the sender does not know to be delivered. `None` as long as
    /// that is not known, after a restart.
    pub outstanding: Option<u32>,
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
    /// Packets that were sent and that it has not acknowledged; `None` if it has not spoken yet.
    pub lag: Option<u32>,
    /// It lacks packets, and no other member lacks more: the sender waits for it.
    pub holds_back: bool,
}

/// Why a member is not evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EvictError {
    /// The switch does not know the group.
    #[error("there is no group {} of {}: `bowline group ls` lists them", .0.id, .0.sender)]
    NoGroup(GroupKey),
    /// It only copies.
    #[error("this switch only copies for the group: its sender knows the members")]
    NoRoot,
    /// No live member has this ID.
    #[error("no live member has ID {0}: `bowline group ls` lists them")]
    NoMember(Qpn),
    /// The group would fail for want of members.
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

    /// Takes a member out of a group because somebody wants it. Completions from now on do not
    /// speak of it.
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
