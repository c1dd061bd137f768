//! The scenario of a seed.

use bowline_link::{Faults, LinkConfig};
use bowline_nic::{Mtu, XpOptions};

use bowline_seal::Rollover;

use crate::attack::AttackPlan;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND, perhaps with an immediate.
    Send(Option<u32>),
    /// WRITE, perhaps with an immediate.
    Write(Option<u32>),
    /// READ.
    Read,
}

impl Kind {
    /// Whether it takes a receive of the peer's.
    pub fn takes_receive(self) -> bool {
        matches!(self, Kind::Send(_) | Kind::Write(Some(_)))
    }

    /// The immediate that goes with it.
    pub fn imm(self) -> Option<u32> {
        match self {
            Kind::Send(imm) | Kind::Write(imm) => imm,
            Kind::Read => None,
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct MessagePlan {
    /// What it does.
    pub kind: Kind,
    /// Bytes.
    pub len: u32,
    /// Where its gather or scatter list is cut.
    pub cuts: Vec<u32>,
    /// Blocks that share a packet.
    pub stride: u16,
    /// Whether a completion was asked for.
    pub signaled: bool,
    /// When it is posted.
    pub at_ns: u64,
    /// How long it may take.
    pub timeout_ns: u64,
}

/// A receive.
#[derive(Clone, Debug)]
pub struct ReceivePlan {
    /// Bytes that fit.
    pub capacity: u32,
    /// Where its scatter list is cut.
    pub cuts: Vec<u32>,
    /// When it is posted.
    pub at_ns: u64,
    /// How long it may take.
    pub timeout_ns: u64,
}

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct XpScenario {
    /// Where it comes from.
    pub seed: u64,
    /// How long a host's port coalesces packets into datagrams.
    pub coalesce_ns: u64,
    /// The cable.
    pub cable: LinkConfig,
    /// Its faults in each direction.
    pub faults: [Faults; 2],
    /// Path MTU.
    pub mtu: Mtu,
    /// How each host receives.
    pub options: [XpOptions; 2],
    /// Each host's token.
    pub tokens: [u32; 2],
    /// Each host's pace.
    pub rate_bps: [Option<u64>; 2],
    /// Each host's requests, in the order in which they are posted.
    pub messages: [Vec<MessagePlan>; 2],
    /// Each host's receives, in the order in which they are posted.
    pub receives: [Vec<ReceivePlan>; 2],
    /// Which hosts run Swift, rather than a fixed pace or none.
    pub swift: [bool; 2],
    /// The attacker.
    pub attack: Option<AttackPlan>,
    /// Seals the connections, with keys that change this often.
    pub sealed: Option<Rollover>,
}
