//! A scenario as data: everything a seed decided, before anything happens.

use bowline_link::{Faults, LinkConfig};
use bowline_sdr::{ReliableConfig, SdrConfig};

use bowline_seal::Rollover;

use crate::attack::AttackPlan;

/// All that one seed draws.
#[derive(Clone, Debug)]
pub struct SdrScenario {
    /// The seed.
    pub seed: u64,
    /// How long ports wait for more packets, to deliver them as one datagram; 0 is not at all.
    /// Where they do, hosts have IPv6 addresses: without IPv4 identifications, packets look alike.
    pub coalesce_ns: u64,
    /// The cable.
    pub cable: LinkConfig,
    /// Faults of both directions until healing: acknowledgements may suffer more than data.
    pub faults: [Faults; 2],
    /// Hosts that stop: which, when, and for how long.
    pub pauses: Vec<(usize, u64, u64)>,
    /// Times during which the cable carries nothing: when, and for how long.
    pub outages: Vec<(u64, u64)>,
    /// From then on there are no faults.
    pub heal_ns: u64,
    /// An outage is longer than the connection's timeout.
    pub may_fail: bool,
    /// The reliable connection.
    pub reliable: ReliableConfig,
    /// Its messages, by sending host.
    pub messages: [Vec<MessagePlan>; 2],
    /// The bare connection.
    pub plain: PlainPlan,
    /// The attacker.
    pub attack: Option<AttackPlan>,
    /// Seals the connections, with keys that change this often.
    pub sealed: Option<Rollover>,
}

/// A reliable message.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlan {
    /// Bytes.
    pub len: u64,
    /// Bytes that the receiver posts.
    pub capacity: u64,
    /// Index of its scheme.
    pub scheme: usize,
    /// 32 bits for the receiver.
    pub imm: Option<u32>,
    /// When it is written.
    pub write_ns: u64,
    /// When its receive is posted, if there is space.
    pub recv_ns: u64,
}

/// A connection without a scheme.
#[derive(Clone, Debug)]
pub struct PlainPlan {
    /// Its parameters.
    pub config: SdrConfig,
    /// Its messages, by sending host.
    pub messages: [Vec<PlainMessage>; 2],
}

/// A message that is completed however much of it has arrived.
#[derive(Clone, Debug)]
pub struct PlainMessage {
    /// Bytes.
    pub len: u64,
    /// Bytes that the receiver posts.
    pub capacity: u64,
    /// The sender's immediate.
    pub imm: Option<u32>,
    /// Pieces of a stream, in packets: first and number. Empty for a message sent in one go.
    pub pieces: Vec<(u64, u64)>,
    /// When it is sent.
    pub send_ns: u64,
    /// When its receive is posted, if there is space.
    pub recv_ns: u64,
    /// How long after that it is completed at the latest.
    pub complete_ns: u64,
}
