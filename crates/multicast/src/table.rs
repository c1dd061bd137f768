//! A switch's configuration for a group.

use core::net::IpAddr;

use bowline_wire::{Psn, Qpn};
use thiserror::Error;

use crate::merge::{Merge, Minimum, Paper};

/// Prefix of the QPNs used as group IDs and member IDs. No device uses it, so that a group never
/// collides with a real queue pair's unicast traffic.
pub const GROUP_PREFIX: u8 = 0xfe;

/// Most members of a group, and most branches of a switch.
pub const MAX_MEMBERS: usize = 64;

/// Most memory regions of a group.
pub const MAX_REGIONS: usize = 1024;

/// Notification point interval of DCQCN: a receiver also limits its CNPs to one per this time.
const CNP_INTERVAL_NS: u64 = 50_000;

/// Which packets belong to a group: those from this address to this QPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The sender's address.
    pub sender: IpAddr,
    /// The group ID, which is the peer QPN of the sender's QP.
    pub id: Qpn,
}

/// Everything that one switch needs for a group.
#[derive(Clone, Debug)]
pub struct Table {
    /// Which packets belong to the group.
    pub key: GroupKey,
    /// Version. A table replaces only one with a lower epoch.
    pub epoch: u64,
    /// Where copies go.
    pub branches: Vec<Branch>,
    /// Memory that the sender may write, as the sender addresses it.
    pub regions: Vec<Region>,
    /// The additional role of the first switch on the sender's path. If no switch has one, nothing
    /// is merged, and the group is one of UC queue pairs.
    pub root: Option<RootConfig>,
}

/// One copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its destination: a member, or any of the members that a later switch copies it to.
    pub dst: IpAddr,
    /// Its source, if that is not the sender: a switch with its own address.
    pub src: Option<Origin>,
    /// The rewrite for a single member. Without it the group ID stays, for the next switch.
    pub leaf: Option<Leaf>,
}

/// The address of a switch that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Address.
    pub addr: IpAddr,
    /// UDP port that it sends from.
    pub port: u16,
}

/// The fields of packets for a single member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The member's QPN.
    pub qpn: Qpn,
    /// Where each of the table's regions is at this member.
    pub places: Vec<Place>,
}

/// Memory that the sender may write, as the sender addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    /// Key.
    pub rkey: u32,
}

impl Region {
    /// Whether an access with this key lies in it.
    pub(crate) fn contains(&self, rkey: u32, va: u64, len: u32) -> bool {
        let offset = va.wrapping_sub(self.va);
        rkey == self.rkey && offset <= self.len && u64::from(len) <= self.len - offset
    }
}

/// A region at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First address.
    pub va: u64,
    /// Key.
    pub rkey: u32,
}

/// What the root of a group needs to merge responses.
#[derive(Clone, Debug)]
pub struct RootConfig {
    /// The sender's real QPN.
    pub sender_qpn: Qpn,
    /// The sender's UDP port.
    pub sender_port: u16,
    /// The sender's supposed peer: the source of responses to it.
    pub peer: Origin,
    /// Where members send their responses: the sender's address, or that of a switch with its own.
    pub answers_to: IpAddr,
    /// The members.
    pub members: Vec<MemberConfig>,
    /// The sender's first PSN. `None` if packets may have been sent before this switch knew of the
    /// group: then nothing is acknowledged until all members have responded.
    pub first_psn: Option<Psn>,
    /// Largest payload of a packet in bytes: the least path MTU of all members.
    pub mtu: u32,
    /// The merge rule for acknowledgements.
    pub merge: &'static dyn Merge,
    /// How members that fail or fall behind are treated.
    pub policy: Policy,
    /// Minimum interval between CNPs to the sender; 0 passes all.
    pub cnp_interval_ns: u64,
    /// The root is in the sender's own port: member IDs are QPNs of the sender's device, which
    /// reserves them. Devices of several processes on one address are told apart by the prefix of
    /// their QPNs, so responses must carry it.
    pub in_port: bool,
    /// The branch that stands for all others: its destination is a multicast address, and what is
    /// sent there reaches every member. Only packets that all members lack take it.
    pub trunk: Option<usize>,
}

impl RootConfig {
    /// A root with the default rule, an MTU of 4096 and no eviction, without members yet.
    pub fn new(sender_qpn: Qpn, peer: Origin, answers_to: IpAddr, first_psn: Option<Psn>) -> Self {
        RootConfig {
            sender_qpn,
            sender_port: bowline_wire::ROCE_UDP_PORT,
            peer,
            answers_to,
            members: Vec::new(),
            first_psn,
            mtu: 4096,
            merge: &Minimum,
            policy: Policy::Fail,
            cnp_interval_ns: CNP_INTERVAL_NS,
            in_port: false,
            trunk: None,
        }
    }

    /// Merges as the paper does, and passes all CNPs.
    pub fn as_in_the_paper(self) -> Self {
        RootConfig { merge: &Paper, cnp_interval_ns: 0, ..self }
    }
}

/// A member, as the root knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// The source address of its responses.
    pub addr: IpAddr,
    /// The member ID, which is the peer QPN of its QP.
    pub id: Qpn,
    /// Which of the table's branches leads to it.
    pub branch: usize,
}

/// How members that fail or fall behind are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The group fails with its first member.
    Fail,
    /// Members that refuse, or that stay behind others for too long, are evicted.
    Evict {
        /// How long a member may make no progress while others are ahead. Should be several times
        /// the sender's timeout, which repairs losses.
        after_ns: u64,
        /// With fewer members the group fails.
        least: usize,
    },
    /// A request is acknowledged when `k` members have it; those that cannot catch up are evicted.
    Quorum {
        /// How many.
        k: usize,
        /// As in [`Policy::Evict`].
        after_ns: u64,
    },
}

impl Policy {
    /// How long a member may stay behind.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        match *self {
            Policy::Fail => None,
            Policy::Evict { after_ns, .. } | Policy::Quorum { after_ns, .. } => Some(after_ns),
        }
    }

    /// The least number of members.
    pub(crate) fn least(&self) -> usize {
        match *self {
            Policy::Fail => 1,
            Policy::Evict { least, .. } => least.max(1),
            Policy::Quorum { k, .. } => k.max(1),
        }
    }
}

/// Why a table is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidTable {
    /// The epoch is not higher.
    #[error("epoch {offered} is not above the current one, {current}: the table is stale")]
    Stale {
        /// Epoch of the table.
        offered: u64,
        /// Epoch of the one that is there.
        current: u64,
    },
    /// Too many groups.
    #[error("this switch holds {0} groups and has no room for more")]
    Full(usize),
    /// Too few or too many members or branches.
    #[error("{0} members or branches: a group has 1 to {MAX_MEMBERS}")]
    Members(usize),
    /// Too many regions, or a leaf does not place each of them.
    #[error("{0} regions: a group has up to {MAX_REGIONS}, and each leaf places all of them")]
    Regions(usize),
    /// An ID in the range of real QPNs, or one that is in use.
    #[error("ID {0}: take an unused one with prefix {GROUP_PREFIX:#04x}, e.g. 0xfe0001")]
    Id(Qpn),
    /// A member's branch does not exist, or the trunk cannot stand for all members.
    #[error("branch {0} does not exist, or cannot be what it is used for")]
    Branch(usize),
    /// Addresses of both families.
    #[error("addresses of IPv4 and of IPv6 in one group")]
    Family,
    /// The policy needs more members than there are.
    #[error("the policy needs {0} members")]
    Policy(usize),
    /// A member joins while packets are outstanding.
    #[error("packets are outstanding: a member joins when everything sent is acknowledged")]
    NotDrained,
}

impl Table {
    /// Checks that do not depend on the switch.
    pub(crate) fn check(&self) -> Result<(), InvalidTable> {
        let is_id = |id: Qpn| id.prefix() == GROUP_PREFIX;
        if !is_id(self.key.id) {
            return Err(InvalidTable::Id(self.key.id));
        }
        if self.branches.is_empty() || self.branches.len() > MAX_MEMBERS {
            return Err(InvalidTable::Members(self.branches.len()));
        }
        let regions = self.regions.len();
        let mut leaves = self.branches.iter().filter_map(|branch| branch.leaf.as_ref());
        if regions > MAX_REGIONS || leaves.any(|leaf| leaf.places.len() != regions) {
            return Err(InvalidTable::Regions(regions));
        }
        let v4 = self.key.sender.is_ipv4();
        let origins = |b: &Branch| b.src.is_none_or(|src| src.addr.is_ipv4() == v4);
        if self.branches.iter().any(|b| b.dst.is_ipv4() != v4 || !origins(b)) {
            return Err(InvalidTable::Family);
        }
        self.root.as_ref().map_or(Ok(()), |root| self.check_root(root))
    }

    fn check_root(&self, root: &RootConfig) -> Result<(), InvalidTable> {
        let members = &root.members;
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(InvalidTable::Members(members.len()));
        }
        let prefix = if root.in_port { root.sender_qpn.prefix() } else { GROUP_PREFIX };
        // At an address of its own a switch may use the numbers that others use at theirs: if the
        // sender is another switch, its queue pair is an ID too.
        let is_senders = |id| id == root.sender_qpn && root.answers_to == self.key.sender;
        for (index, member) in members.iter().enumerate() {
            let is_twice = members[..index].iter().any(|other| other.id == member.id);
            if member.id.prefix() != prefix || is_senders(member.id) || is_twice {
                return Err(InvalidTable::Id(member.id));
            }
            if member.branch >= self.branches.len() {
                return Err(InvalidTable::Branch(member.branch));
            }
            if member.addr.is_ipv4() != self.key.sender.is_ipv4() {
                return Err(InvalidTable::Family);
            }
        }
        if root.peer.addr.is_ipv4() != self.key.sender.is_ipv4() {
            return Err(InvalidTable::Family);
        }
        if let Some(trunk) = root.trunk {
            let is_whole = self.branches.get(trunk).is_some_and(|branch| branch.leaf.is_none());
            if !is_whole || members.iter().any(|member| member.branch == trunk) {
                return Err(InvalidTable::Branch(trunk));
            }
        }
        let least = root.policy.least();
        if least > members.len() {
            return Err(InvalidTable::Policy(least));
        }
        Ok(())
    }
}
