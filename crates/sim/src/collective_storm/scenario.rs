//! The scenario of a seed.

use bowline_collective::{Algorithm, Bounds, GroupConfig, Hosts, Operation, Request};
use bowline_link::{Faults, LinkConfig};
use bowline_nic::Mtu;

/// An operation of all ranks.
#[derive(Clone, Debug)]
pub struct OpPlan {
    /// What it does.
    pub request: Request,
    /// Its guarantees, if it runs over XP.
    pub bounds: Option<Bounds>,
    /// When each rank submits it.
    pub at_ns: Vec<u64>,
}

impl OpPlan {
    /// Bytes that a rank receives in messages that may be lost. Where hosts reduce first, an
    /// element more for ranks whose part is shorter.
    pub fn may_lose(&self, rank: u32, hosts: &Hosts) -> u64 {
        let ranks = hosts.ranks();
        let Some(bounds) = self.bounds else { return 0 };
        let element = self.request.dtype.size();
        let others = ranks as usize - 1;
        let exchange = self.request.algorithm == Algorithm::Exchange;
        let two_level = self.request.algorithm == Algorithm::TwoLevel;
        let elements = match self.request.operation {
            Operation::Allreduce { .. } if exchange && bounds.equal_replicas => 0,
            Operation::Allreduce { count } if exchange => others * count,
            Operation::Allreduce { count } if two_level => {
                let (count_of_hosts, _) = hosts.shape().unwrap_or((1, 1));
                let speakers = hosts.speakers().unwrap_or(1);
                (count_of_hosts - 1) * count.div_ceil(speakers).div_ceil(count_of_hosts)
            }
            Operation::Allreduce { count } => {
                let longer = count % ranks as usize;
                others * (count / ranks as usize + usize::from((rank as usize) < longer))
            }
            Operation::ReduceScatter { count }
            | Operation::Allgather { count }
            | Operation::AllToAll { count } => others * count,
            Operation::Broadcast { count, root } | Operation::Scatter { count, root }
                if rank != root =>
            {
                count
            }
            Operation::Reduce { count, root } | Operation::Gather { count, root }
                if rank == root =>
            {
                others * count
            }
            _ => 0,
        };
        (elements * element) as u64
    }
}

/// A host that does nothing for a while.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Its rank.
    pub rank: u32,
    /// From when on.
    pub at_ns: u64,
    /// How long.
    pub for_ns: u64,
}

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct CollectiveScenario {
    /// The seed it was drawn from.
    pub seed: u64,
    /// How many.
    pub ranks: u32,
    /// Which of them say that they share a host.
    pub hosts: Hosts,
    /// Every cable.
    pub cable: LinkConfig,
    /// Their faults.
    pub faults: Faults,
    /// Largest packets.
    pub mtu: Mtu,
    /// The configuration of the group.
    pub config: GroupConfig,
    /// Their operations, in this order.
    pub ops: Vec<OpPlan>,
    /// Hosts that stall.
    pub stalls: Vec<Stall>,
    /// The rank that dies, and when.
    pub kill: Option<(u32, u64)>,
    /// Who writes its messages into a ring of whom, in shared memory.
    pub shares: Vec<(u32, u32)>,
}

impl CollectiveScenario {
    /// Ranks and their peers that share rings in both directions.
    pub(super) fn near(&self) -> impl Iterator<Item = (u32, u32)> {
        let both = |(from, to): &&(u32, u32)| self.shares.contains(&(*to, *from));
        self.shares.iter().filter(both).copied()
    }
}
