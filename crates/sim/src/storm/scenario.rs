//! A scenario as data: everything a seed decided, before anything happens.

use bowline_fec::FecConfig;
use bowline_link::{Faults, LinkConfig};
use bowline_nic::{Mtu, QpType, RateControl, TxCaps};
use bowline_seal::Rollover;

use super::crime::Crime;
use crate::attack::AttackPlan;
use crate::failover_storm::FailoverPlan;
use crate::world::{RxId, TxId};

/// All that one seed draws.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Hosts have IPv6 addresses.
    pub ipv6: bool,
    /// How hosts are joined.
    pub shape: Shape,
    /// Links of hosts.
    pub access: LinkConfig,
    /// Links between switches, where the shape has any.
    pub core: LinkConfig,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// Connections, sacrificial ones last.
    pub conns: Vec<ConnPlan>,
    /// Faults of each cable until healing; cables beyond the list have the last one's.
    pub faults: Vec<Faults>,
    /// Hosts that handle nothing for a while: host, from, for how long.
    pub pauses: Vec<(usize, u64, u64)>,
    /// Cables that carry nothing for a while: which (modulo their number), from, for how long.
    pub outages: Vec<(usize, u64, u64)>,
    /// When all faults end.
    pub heal_ns: u64,
    /// Faults are so mild that no connection may give up.
    pub mild: bool,
    /// Hosts have a second NIC each, to which connections can move.
    pub failover: Option<FailoverPlan>,
    /// Somebody forges packets.
    pub attack: Option<AttackPlan>,
    /// Seals all connections, with keys that change this often; the attacker is on the path.
    pub sealed: Option<Rollover>,
}

/// Shape of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Two hosts, one cable.
    Pair,
    /// One switch.
    Star,
    /// Two switches and a bottleneck.
    Dumbbell,
    /// A ring of datacenters.
    Ring,
    /// A fat tree of 4-port switches.
    FatTree,
    /// Two rails, each with a switch of its own: the hosts' first NICs, and their second ones.
    Rails,
}

/// A host.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Its engines.
    pub nics: Vec<NicPlan>,
    /// What its port sends in one call.
    pub tx_caps: TxCaps,
    /// Packets it asks an engine for at a time.
    pub tx_batch: usize,
    /// How it numbers IPv4 packets.
    pub tx_id: TxId,
    /// What it knows of IPv4 identifications.
    pub rx_id: RxId,
    /// How long its port waits for more packets of a flow; 0 is not at all.
    pub coalesce_ns: u64,
}

/// An engine and how its application behaves.
#[derive(Clone, Debug)]
pub struct NicPlan {
    /// Number of its engines, which share its queues and regions.
    pub lanes: usize,
    /// Window towards a peer.
    pub window_bytes: u32,
    /// All QPs complete into one queue.
    pub one_cq: bool,
    /// Completions are polled only after a notification.
    pub event_driven: bool,
    /// Interval between polls for completions; 0 polls at once.
    pub poll_interval_ns: u64,
    /// Completions polled at a time.
    pub poll_batch: usize,
    /// A shared receive queue.
    pub srq: Option<SrqPlan>,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqPlan {
    /// Receives that it holds.
    pub depth: u32,
    /// How long a used receive waits before it is posted again.
    pub repost_ns: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Legal traffic, which must arrive.
    Normal,
    /// A bad request, whose failure must be the right one and harm nobody.
    Sacrificial(Crime),
    /// Legal traffic, whose PSNs an attacker guesses. Its own results are then not trusted, but it
    /// must harm nobody else and must finish.
    Hostage,
}

/// Two QPs that talk to each other.
#[derive(Clone, Debug)]
pub struct ConnPlan {
    /// Transport.
    pub qp_type: QpType,
    /// Its role.
    pub role: Role,
    /// Path MTU.
    pub mtu: Mtu,
    /// Both ends.
    pub ends: [EndPlan; 2],
    /// When both ends are reset and reconnected.
    pub reconnects_ns: Vec<u64>,
    /// When an end's send queue is drained (SQD) and restarted: end, time.
    pub drains_ns: Vec<(usize, u64)>,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct EndPlan {
    /// Which engine, counted over all hosts.
    pub nic: usize,
    /// First PSN.
    pub psn: u32,
    /// Depth of the send queue.
    pub send_depth: u32,
    /// Depth of the receive queue.
    pub recv_depth: u32,
    /// Takes receives from the engine's shared queue.
    pub uses_srq: bool,
    /// READs and atomics outstanding as requester.
    pub rd_atomic: u8,
    /// Code of the retransmission timeout.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// RNR timer that it asks for.
    pub rnr_timer: u8,
    /// Every send is signaled.
    pub signal_all: bool,
    /// Most inline bytes.
    pub max_inline: u32,
    /// Rate control.
    pub rate: RateControl,
    /// Its own window.
    pub window: Option<u32>,
    /// When its first receives are posted.
    pub recv_start_ns: u64,
    /// How long after a completion the next receive is posted.
    pub recv_delay_ns: u64,
    /// FEC under the QP.
    pub fec: Option<FecConfig>,
    /// What it sends.
    pub ops: Vec<OpPlan>,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// SEND with invalidate.
    SendInvalidate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare-and-swap.
    CompareSwap,
    /// Fetch-and-add.
    FetchAdd,
}

impl OpKind {
    /// All of them.
    pub const ALL: [OpKind; 8] = [
        OpKind::Send,
        OpKind::SendImm,
        OpKind::SendInvalidate,
        OpKind::Write,
        OpKind::WriteImm,
        OpKind::Read,
        OpKind::CompareSwap,
        OpKind::FetchAdd,
    ];

    /// Whether it consumes a receive of the peer.
    pub fn consumes_receive(self) -> bool {
        matches!(self, OpKind::Send | OpKind::SendImm | OpKind::SendInvalidate | OpKind::WriteImm)
    }

    /// Whether it writes the peer's memory by address.
    pub fn is_write(self) -> bool {
        matches!(self, OpKind::Write | OpKind::WriteImm)
    }

    /// Whether it is an atomic.
    pub fn is_atomic(self) -> bool {
        matches!(self, OpKind::CompareSwap | OpKind::FetchAdd)
    }

    /// Whether its payload goes into a receive.
    pub fn is_send(self) -> bool {
        matches!(self, OpKind::Send | OpKind::SendImm | OpKind::SendInvalidate)
    }
}

/// The target of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A WRITE to its own place, or a READ of memory that never changes.
    Fresh,
    /// A WRITE over, or a READ of, the place of the `n`-th last WRITE.
    Earlier(u8),
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct OpPlan {
    /// What.
    pub kind: OpKind,
    /// Bytes.
    pub len: u32,
    /// Gather or scatter entries.
    pub pieces: u8,
    /// Signaled.
    pub signaled: bool,
    /// Fenced.
    pub fence: bool,
    /// Solicited.
    pub solicited: bool,
    /// Payload in the request.
    pub inline: bool,
    /// Where it goes.
    pub target: Target,
    /// Word, for an atomic; whether a compare-and-swap compares with a wrong value.
    pub choice: u8,
    /// The bad request of a sacrificial connection.
    pub bad: bool,
    /// An unreliable request that must be dropped: a WRITE with a wrong key, a datagram with a
    /// wrong Q_Key.
    pub stray: bool,
    /// Time between the previous post and this one.
    pub think_ns: u64,
}
