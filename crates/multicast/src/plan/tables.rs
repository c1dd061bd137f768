//! Turns a plan into the tables of switches.

use core::net::IpAddr;
use std::collections::BTreeMap;

use bowline_wire::Qpn;

use super::Plan;
use crate::table::{Branch, GroupKey, Leaf, MemberConfig, Place, Region, RootConfig, Table};

/// A member, as determined at set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    /// Its address.
    pub addr: IpAddr,
    /// Its QPN.
    pub qpn: Qpn,
    /// Its member ID.
    pub id: Qpn,
    /// Where each of the group's regions is at this member.
    pub places: Vec<Place>,
}

/// A group, with everything that its switches need.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Which packets belong to it.
    pub key: GroupKey,
    /// Version of the tables.
    pub epoch: u64,
    /// Memory that the sender may write, as the sender addresses it.
    pub regions: Vec<Region>,
    /// The members, in the order in which they were planned.
    pub members: Vec<MemberSpec>,
    /// The root's configuration. Its list of members is filled in.
    pub root: RootConfig,
}

/// The tables of a group of UC queue pairs, whose packets are not acknowledged: as [`tables`], but
/// no switch merges.
pub fn unreliable_tables<N: Copy + Ord>(plan: &Plan<N>, group: &GroupSpec) -> BTreeMap<N, Table> {
    let mut tables = tables(plan, group);
    tables.values_mut().for_each(|table| table.root = None);
    tables
}

/// The table of each switch that has one.
pub fn tables<N: Copy + Ord>(plan: &Plan<N>, group: &GroupSpec) -> BTreeMap<N, Table> {
    let table_of = |(node, branches): (&N, &Vec<super::PlannedBranch>)| {
        let branch_of = |planned: &super::PlannedBranch| {
            let only = match planned.members.as_slice() {
                [only] => group.members.get(*only),
                _ => None,
            };
            let leaf = only.map(|m| Leaf { qpn: m.qpn, places: m.places.clone() });
            Branch { dst: planned.dst, src: None, leaf }
        };
        let root = (*node == plan.root).then(|| {
            let member = |(index, member): (usize, &MemberSpec)| MemberConfig {
                addr: member.addr,
                id: member.id,
                branch: branches.iter().position(|b| b.members.contains(&index)).unwrap_or(0),
            };
            let members = group.members.iter().enumerate().map(member).collect();
            RootConfig { members, ..group.root.clone() }
        });
        let branches = branches.iter().map(branch_of).collect();
        let (key, epoch, regions) = (group.key, group.epoch, group.regions.clone());
        (*node, Table { key, epoch, branches, regions, root })
    };
    let mut tables: BTreeMap<N, Table> = plan.rules.iter().map(table_of).collect();
    // A root in front of one branch only merges, and forwards data unchanged.
    tables.entry(plan.root).or_insert_with(|| {
        let member =
            |member: &MemberSpec| MemberConfig { addr: member.addr, id: member.id, branch: 0 };
        let members = group.members.iter().map(member).collect();
        let first = group.members.first().map_or(group.key.sender, |member| member.addr);
        Table {
            key: group.key,
            epoch: group.epoch,
            branches: vec![Branch { dst: first, src: None, leaf: None }],
            regions: group.regions.clone(),
            root: Some(RootConfig { members, ..group.root.clone() }),
        }
    });
    tables
}
