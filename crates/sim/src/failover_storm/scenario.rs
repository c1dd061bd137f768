//! What a seed decides about failover.

use bowline_failover::{Config, Rail};

/// Failover of a scenario. Machine `k` has the scenario's NIC `k` and a second one; its agent
/// supervises both.
#[derive(Clone, Debug)]
pub struct FailoverPlan {
    /// How all agents behave.
    pub config: Config,
    /// Cables that carry nothing for a while.
    pub outages: Vec<Outage>,
    /// Agents that are not called for a while: machine, from, for how long.
    pub naps: Vec<(usize, u64, u64)>,
    /// How far each agent's clock is ahead of its NICs'.
    pub clocks_ahead_ns: Vec<u64>,
    /// How long after connecting an end learns of its peer's spare, by connection; `None` means
    /// only after healing.
    pub entries_ns: Vec<[Option<u64>; 2]>,
    /// How long after a failure a connection is re-established.
    pub recovery_ns: u64,
}

/// A host's cable that carries nothing for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its machine.
    pub machine: usize,
    /// Its rail.
    pub rail: Rail,
    /// Which directions.
    pub cut: Cut,
    /// The host's port sees it.
    pub told: bool,
    /// From when.
    pub at_ns: u64,
    /// For how long.
    pub for_ns: u64,
}

/// Directions of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both.
    Whole,
    /// What the host sends is lost.
    Out,
    /// What is sent to the host is lost.
    In,
}

impl Cut {
    /// Whether it cuts what the host sends, and what is sent to it.
    pub fn ways(self) -> [bool; 2] {
        [self != Cut::In, self != Cut::Out]
    }
}
