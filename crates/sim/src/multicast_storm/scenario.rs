//! The scenario of a seed.

use bowline_link::{Faults, LinkConfig};
use bowline_multicast::Policy;
use bowline_nic::Mtu;

use crate::attack::AttackPlan;

/// The network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One switch.
    Star,
    /// Leaves and spines.
    LeafSpine([usize; 2]),
    /// A fat tree of 4-port switches.
    FatTree,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND, perhaps with an immediate.
    Send(Option<u32>),
    /// WRITE, perhaps with an immediate.
    Write(Option<u32>),
    /// READ, which groups do not support.
    Read,
    /// An atomic, which groups do not support.
    FetchAdd,
    /// A WRITE outside the group's memory.
    WriteBeyond,
}

impl Kind {
    /// Whether it takes a receive of each member.
    pub fn takes_receive(self) -> bool {
        matches!(self, Kind::Send(_) | Kind::Write(Some(_)))
    }

    /// Whether it must be rejected.
    pub fn is_crime(self) -> bool {
        matches!(self, Kind::Read | Kind::FetchAdd | Kind::WriteBeyond)
    }

    /// The immediate that goes with it.
    pub fn imm(self) -> Option<u32> {
        match self {
            Kind::Send(imm) | Kind::Write(imm) => imm,
            _ => None,
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlan {
    /// What it does.
    pub kind: Kind,
    /// Bytes.
    pub len: u32,
}

/// A member.
#[derive(Clone, Copy, Debug)]
pub struct MemberPlan {
    /// Its host.
    pub host: usize,
    /// It joins before this request; 0 if it is there from the start.
    pub joins_before: usize,
    /// Offset of its memory.
    pub pad: u32,
    /// It posts its receives late.
    pub is_slow: bool,
}

/// A group.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// The sender's host.
    pub sender: usize,
    /// The members, those that join later too, in the order in which they do.
    pub members: Vec<MemberPlan>,
    /// Path MTU.
    pub mtu: Mtu,
    /// The sender's first PSN.
    pub first_psn: u32,
    /// It merges as the paper does.
    pub as_in_the_paper: bool,
    /// How members that fail or fall behind are treated.
    pub policy: Policy,
    /// Requests.
    pub messages: Vec<MessagePlan>,
    /// A switch that has all members reaches them by IP multicast.
    pub has_trunk: bool,
}

/// A scheduled action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next request of a group may be posted.
    Post(usize),
    /// A slow member posts its next receive.
    Receive(usize, usize),
    /// A member's host is paused until a time.
    Pause(usize, usize, u64),
    /// A member's QP is gone.
    Kill(usize, usize),
    /// A member's memory is deregistered, so that it rejects what comes next.
    Revoke(usize, usize),
    /// A member leaves.
    Leave(usize, usize),
    /// A switch loses its tables and records.
    Restart(usize),
    /// A switch that has lost its tables gets them back.
    Reinstall(usize),
    /// The multicast address of a group reaches nobody from now on.
    LoseTrunk(usize),
    /// Somebody forges so many packets.
    Attack(u32),
    /// Faults end.
    Heal,
}

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct MulticastScenario {
    /// Where it comes from.
    pub seed: u64,
    /// The network.
    pub shape: Shape,
    /// Hosts in it.
    pub hosts: usize,
    /// Addresses are IPv6.
    pub v6: bool,
    /// Switches choose among equal-cost paths by flow rather than by destination.
    pub ecmp: bool,
    /// Every cable.
    pub cable: LinkConfig,
    /// Faults of the links, which cycle through them.
    pub faults: Vec<Faults>,
    /// The groups.
    pub groups: Vec<GroupPlan>,
    /// What happens when, in order.
    pub actions: Vec<(u64, Action)>,
    /// The attacker.
    pub attack: Option<AttackPlan>,
}

impl MulticastScenario {
    /// Whether nothing in it, not even a full queue, can keep a member from answering in time.
    pub fn is_calm(&self) -> bool {
        let is_wide = self.cable.rate_bps >= Some(100_000_000_000);
        let is_work =
            |action: &Action| matches!(action, Action::Post(_) | Action::Leave(..) | Action::Heal);
        is_wide
            && self.cable.queue_bytes >= 16 << 20
            && self.faults.iter().all(|faults| *faults == Faults::default())
            && self.actions.iter().all(|(_, action)| is_work(action))
    }
}
