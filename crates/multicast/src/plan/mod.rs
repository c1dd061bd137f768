//! Which switch replicates: the paper's Algorithm 1, IDs, and table sizes.

pub mod capacity;
mod ids;
mod tables;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::BTreeMap;

use thiserror::Error;

pub use ids::IdPool;
pub use tables::{GroupSpec, MemberSpec, tables, unreliable_tables};

use crate::table::MAX_MEMBERS;

/// A network, as unicast routing sees it.
pub trait Network {
    /// A host's port or a switch.
    type Node: Copy + Ord;

    /// The next hops of all equal-cost paths from a node to an address, in a fixed order; none if
    /// there is no path.
    fn next_hops(&self, at: Self::Node, dst: IpAddr) -> Vec<Self::Node>;

    /// Whether a node is a host.
    fn is_host(&self, node: Self::Node) -> bool;

    /// Whether a switch can replicate and rewrite. Others only forward: in the paper's section V-A,
    /// all but the top-of-rack switches.
    fn is_programmable(&self, _node: Self::Node) -> bool {
        true
    }
}

/// A copy that a switch makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBranch {
    /// The destination address of the copy.
    pub dst: IpAddr,
    /// Members that it leads to, by their index in the list. With a single one, the copy is
    /// rewritten for it here.
    pub members: Vec<usize>,
}

/// Which switches replicate, and which one merges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<N> {
    /// The first switch on the sender's path, which all packets of the group pass.
    pub root: N,
    /// What each switch replicates. A root in front of a single branch replicates nothing.
    pub rules: BTreeMap<N, Vec<PlannedBranch>>,
}

/// Why a group cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// No members, or too many.
    #[error("{0} members: a group has 1 to {MAX_MEMBERS}")]
    Members(usize),
    /// There is no path to a member.
    #[error("there is no route to member {0}")]
    Unreachable(usize),
    /// The sender's packets do not all pass one switch that can replicate.
    #[error("the sender is not behind one switch that can copy")]
    NoRoot,
    /// Routes form a loop.
    #[error("the routes to the members form a loop")]
    Loop,
}

/// More hops than any network has.
const MAX_HOPS: usize = 64;

/// Plans a group: replicates as late as possible, and rewrites where a copy has one member left.
///
/// The root is the next hop of the sender towards the first member. Differences from the paper's
/// Algorithm 1: a member at the next hop always gets its own branch, so that groups of one and
/// members that share an address work; and where two branches with different members would meet
/// again at one switch, which cannot tell them apart, the root makes all copies.
///
/// # Errors
/// If no such plan exists.
pub fn bifurcate<T: Network>(
    network: &T,
    sender: T::Node,
    members: &[IpAddr],
) -> Result<Plan<T::Node>, PlanError> {
    if members.is_empty() || members.len() > MAX_MEMBERS {
        return Err(PlanError::Members(members.len()));
    }
    let planner = Planner { network, members };
    let all: Vec<usize> = (0..members.len()).collect();
    for member in &all {
        // Responses are merged in one place, so all data must pass it.
        match planner.hops(sender, *member)?.as_slice() {
            [first] if network.is_programmable(*first) && !network.is_host(*first) => {}
            _ => return Err(PlanError::NoRoot),
        }
    }
    let root = planner.hops(sender, 0)?[0];
    let mut rules = BTreeMap::new();
    let mut visited = BTreeMap::new();
    match planner.visit(root, &all, &mut rules, &mut visited, MAX_HOPS) {
        Ok(()) => {}
        Err(Trouble::Meeting) => {
            let alone =
                |member: &usize| PlannedBranch { dst: members[*member], members: vec![*member] };
            rules = BTreeMap::from([(root, all.iter().map(alone).collect())]);
        }
        Err(Trouble::Error(error)) => return Err(error),
    }
    Ok(Plan { root, rules })
}

struct Planner<'a, T> {
    network: &'a T,
    members: &'a [IpAddr],
}

enum Trouble {
    /// A switch would get two copies of a packet for different members.
    Meeting,
    Error(PlanError),
}

impl From<PlanError> for Trouble {
    fn from(error: PlanError) -> Self {
        Trouble::Error(error)
    }
}

type Rules<N> = BTreeMap<N, Vec<PlannedBranch>>;

impl<T: Network> Planner<'_, T> {
    /// Function Bifurcation of the paper, at switch `at` for some of the members.
    fn visit(
        &self,
        at: T::Node,
        members: &[usize],
        rules: &mut Rules<T::Node>,
        visited: &mut BTreeMap<T::Node, Vec<usize>>,
        hops_left: usize,
    ) -> Result<(), Trouble> {
        if let Some(before) = visited.get(&at) {
            // One of several equal-cost paths is taken, so this is the same copy.
            return if before == members { Ok(()) } else { Err(Trouble::Meeting) };
        }
        let hops_left = hops_left.checked_sub(1).ok_or(PlanError::Loop)?;
        visited.insert(at, members.to_vec());
        let mut groups: Vec<(Vec<T::Node>, Vec<usize>)> = Vec::new();
        for member in members {
            let hops = self.hops(at, *member)?;
            let is_last = hops.iter().any(|hop| self.network.is_host(*hop));
            match groups.iter_mut().find(|(known, _)| !is_last && *known == hops) {
                Some((_, group)) => group.push(*member),
                None => groups.push((hops, vec![*member])),
            }
        }
        let is_last = |(hops, _): &(Vec<T::Node>, _)| hops.iter().any(|h| self.network.is_host(*h));
        if groups.len() > 1 || members.len() == 1 || groups.iter().any(is_last) {
            let branch = |(_, group): &(_, Vec<usize>)| PlannedBranch {
                dst: self.members[group[0]],
                members: group.clone(),
            };
            rules.insert(at, groups.iter().map(branch).collect());
        }
        for (hops, group) in groups.iter().filter(|(_, group)| group.len() > 1) {
            for hop in hops {
                self.visit(*hop, group, rules, visited, hops_left)?;
            }
        }
        Ok(())
    }

    /// Next hops that are hosts or can replicate: looks through those that only forward.
    fn hops(&self, at: T::Node, member: usize) -> Result<Vec<T::Node>, PlanError> {
        let dst = self.members[member];
        let mut hops = self.network.next_hops(at, dst);
        for _ in 0..MAX_HOPS {
            if hops.is_empty() {
                return Err(PlanError::Unreachable(member));
            }
            let is_end =
                |hop: T::Node| self.network.is_host(hop) || self.network.is_programmable(hop);
            if hops.iter().all(|hop| is_end(*hop)) {
                return Ok(hops);
            }
            let further = |hop: T::Node| {
                if is_end(hop) { vec![hop] } else { self.network.next_hops(hop, dst) }
            };
            hops = hops.into_iter().flat_map(further).collect();
            hops.sort_unstable();
            hops.dedup();
        }
        Err(PlanError::Loop)
    }
}
