//! A tree of switches: a root in this process, and managed switches below it.

use std::net::{IpAddr, Ipv4Addr};

use bowline_multicast::plan::{Network, Plan, PlanError, PlannedBranch, bifurcate};
use bowline_wire::Qpn;

use super::message::Info;
use super::{GroupSpec, RemoteError, RemoteStatus, RemoteSwitch, TreeGroup};
use crate::Error;
use crate::endpoint::Endpoint;
use crate::multicast::{ConnectGroupError, GroupMember, GroupOptions, GroupSwitch, Reserved};

/// Where members and switches are attached.
///
/// ```
/// use bowline::multicast::Shape;
///
/// // Members 0 and 1 are behind switch 0, and member 2 is behind the root.
/// let shape = Shape::new(vec![Some(0), Some(0), None], vec![None])?;
/// assert!(Shape::new(vec![Some(1)], vec![None]).is_err());
/// // Two switches that are behind each other.
/// assert!(Shape::new(vec![Some(0)], vec![Some(1), Some(0)]).is_err());
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The switch before each member; `None` for the root.
    members: Vec<Option<usize>>,
    /// The switch before each switch.
    switches: Vec<Option<usize>>,
}

impl Shape {
    /// A tree, given the switch before each member and before each managed switch, by its number;
    /// `None` stands for the root.
    ///
    /// # Errors
    /// If a switch does not exist, or is behind itself.
    pub fn new(
        members: Vec<Option<usize>>,
        switches: Vec<Option<usize>>,
    ) -> Result<Shape, RemoteError> {
        let shape = Shape { members, switches };
        let count = shape.switches.len();
        if shape.members.iter().chain(&shape.switches).flatten().any(|at| *at >= count) {
            return Err(RemoteError::Shape("something is behind a switch that is not in it"));
        }
        for at in 0..count {
            if shape.above(Some(at)).nth(count).is_some() {
                return Err(RemoteError::Shape("a switch is behind itself"));
            }
        }
        Ok(shape)
    }

    /// A switch and those before it; the root is not listed.
    fn above(&self, at: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(at, |at| self.switches[*at])
    }
}

/// The network of a tree, for the planner. Nodes are the sender, the root, switches and members, in
/// this order. Members are told apart by their number, because several may share an address.
struct Nodes<'a> {
    shape: &'a Shape,
}

const SENDER: usize = 0;
const ROOT: usize = 1;

impl Nodes<'_> {
    fn switch(at: usize) -> usize {
        ROOT + 1 + at
    }

    fn first_member(&self) -> usize {
        Nodes::switch(self.shape.switches.len())
    }

    fn label(member: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(member as u32))
    }
}

impl Network for Nodes<'_> {
    type Node = usize;

    fn next_hops(&self, at: usize, dst: IpAddr) -> Vec<usize> {
        let IpAddr::V4(label) = dst else { return Vec::new() };
        let member = label.to_bits() as usize;
        let Some(behind) = self.shape.members.get(member) else { return Vec::new() };
        let mut path = vec![self.first_member() + member];
        path.extend(self.shape.above(*behind).map(Nodes::switch));
        path.extend([ROOT, SENDER]);
        let here = path.iter().position(|node| *node == at);
        here.and_then(|here| path.get(here.checked_sub(1)?)).copied().into_iter().collect()
    }

    fn is_host(&self, node: usize) -> bool {
        node == SENDER || node >= self.first_member()
    }
}

/// Something that a switch of a planned group copies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Child {
    /// A member, by its number.
    Member(usize),
    /// Another switch, by its place in the plan.
    Switch(usize),
}

/// A switch that copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedSwitch {
    /// Which one; `None` is the root.
    pub(super) at: Option<usize>,
    pub(super) children: Vec<Child>,
}

/// Which switches copy for these members: those where paths part, and the last before a member
/// (Algorithm 1). The root is first, and every switch comes before those behind it.
pub(super) fn plan(shape: &Shape, members: &[usize]) -> Result<Vec<PlannedSwitch>, PlanError> {
    let labels: Vec<IpAddr> = members.iter().map(|member| Nodes::label(*member)).collect();
    let planned = bifurcate(&Nodes { shape }, SENDER, &labels)?;
    let all: Vec<usize> = (0..members.len()).collect();
    let mut switches = vec![PlannedSwitch { at: None, children: Vec::new() }];
    // If everything is behind one switch, the root has no rule: it makes one copy.
    let one_copy = || vec![PlannedBranch { dst: labels[0], members: all.clone() }];
    let mut open = vec![(0, planned.rules.get(&ROOT).cloned().unwrap_or_else(one_copy))];
    while let Some((here, branches)) = open.pop() {
        for branch in branches {
            let next = if let [only] = branch.members[..] {
                Child::Member(members[only])
            } else {
                let (node, rule) = rule(&planned, &branch.members).ok_or(PlanError::Loop)?;
                switches.push(PlannedSwitch { at: Some(node - ROOT - 1), children: Vec::new() });
                open.push((switches.len() - 1, rule.clone()));
                Child::Switch(switches.len() - 1)
            };
            switches[here].children.push(next);
        }
    }
    Ok(switches)
}

/// The switch that copies for exactly these members. The last one, if there are several: others
/// would only pass packets on.
fn rule<'p>(
    planned: &'p Plan<usize>,
    members: &[usize],
) -> Option<(usize, &'p Vec<PlannedBranch>)> {
    let covers = |branches: &[PlannedBranch]| {
        let mut all: Vec<usize> = branches.iter().flat_map(|b| b.members.clone()).collect();
        all.sort_unstable();
        all == members
    };
    planned.rules.iter().find(|(_, rule)| covers(rule)).map(|(node, rule)| (*node, rule))
}

/// A switch of this process, with managed switches on other hosts behind it.
///
/// A member's queue pair connects to the last switch before it, which merges the answers of what is
/// behind it. The switch before that takes the result for one member's answer.
pub struct SwitchTree<'a> {
    root: &'a GroupSwitch,
    remotes: Vec<RemoteSwitch>,
    shape: Shape,
}

impl<'a> SwitchTree<'a> {
    /// A switch, with others behind it.
    ///
    /// # Errors
    /// If there are more or fewer switches than in the shape.
    pub fn new(
        root: &'a GroupSwitch,
        remotes: Vec<RemoteSwitch>,
        shape: Shape,
    ) -> Result<SwitchTree<'a>, RemoteError> {
        if remotes.len() != shape.switches.len() {
            return Err(RemoteError::Shape("it has another number of switches"));
        }
        Ok(SwitchTree { root, remotes, shape })
    }

    /// A switch with these many members and no other switch.
    pub fn alone(root: &'a GroupSwitch, members: usize) -> SwitchTree<'a> {
        let shape = Shape { members: vec![None; members], switches: Vec::new() };
        SwitchTree { root, remotes: Vec::new(), shape }
    }

    /// How many members it has places for.
    pub fn members(&self) -> usize {
        self.shape.members.len()
    }

    /// Creates a group of a sender and these members, which are numbered as in the shape. Their
    /// queue pairs then connect to [`TreeGroup::for_members`], and the sender's to
    /// [`TreeGroup::for_sender`].
    ///
    /// # Errors
    /// If a switch rejects it. Then no switch has it.
    pub fn connect(
        &'a self,
        sender: &Endpoint,
        members: &[(usize, GroupMember)],
        options: &GroupOptions,
    ) -> Result<TreeGroup<'a>, Error> {
        let numbers: Vec<usize> = members.iter().map(|(number, _)| *number).collect();
        let mut group = self.reserve(&numbers)?;
        group.offer(members.iter().map(|(_, member)| member.clone()).collect())?;
        group.connect(sender, options)?;
        Ok(group)
    }

    /// Reserves the IDs of a group at all switches that copy for these members.
    ///
    /// # Errors
    /// If a switch has too few.
    pub fn reserve(&'a self, members: &[usize]) -> Result<TreeGroup<'a>, Error> {
        if members.iter().any(|member| *member >= self.members()) {
            return Err(RemoteError::Shape("a member has no place in it").into());
        }
        let planned = plan(&self.shape, members).map_err(|error| match error {
            PlanError::Members(0) => Error::from(ConnectGroupError::NoMembers),
            error => Error::Invalid { what: "tree", why: error.to_string() },
        })?;
        TreeGroup::reserve(self, planned, members.to_vec())
    }

    /// The first switch on the way from a member to the root for which `find` finds something.
    pub(super) fn nearest(
        &self,
        member: usize,
        find: impl Fn(Option<usize>) -> Option<usize>,
    ) -> Option<usize> {
        let behind = *self.shape.members.get(member)?;
        self.shape.above(behind).map(Some).chain([None]).find_map(find)
    }

    pub(super) fn info(&self, at: Option<usize>) -> Info {
        at.map_or_else(|| self.root.info(), |at| self.remotes[at].info())
    }

    pub(super) fn reserve_at(&self, at: Option<usize>, count: usize) -> Result<Reserved, Error> {
        match at {
            None => Ok(self.root.reserve(count)?),
            Some(at) => self.remotes[at].reserve(count),
        }
    }

    pub(super) fn reserve_one(&self, at: Option<usize>, group: Qpn) -> Result<Qpn, Error> {
        match at {
            None => self.root.take_id().ok_or_else(|| ConnectGroupError::NoIds.into()),
            Some(at) => self.remotes[at].reserve_one(group),
        }
    }

    pub(super) fn install(&self, at: Option<usize>, spec: GroupSpec) -> Result<(), Error> {
        match at {
            None => self.root.install_group(&spec),
            Some(at) => self.remotes[at].install(spec),
        }
    }

    pub(super) fn remove(&self, at: Option<usize>, sender: Option<IpAddr>, ids: &Reserved) {
        match at {
            None => {
                let key = sender.map(|sender| crate::multicast::GroupKey { sender, id: ids.group });
                self.root.end_group(key.as_ref(), ids);
            }
            // One that cannot be told removes it by itself.
            Some(at) => drop(self.remotes[at].remove(ids.group)),
        }
    }

    pub(super) fn evict(
        &self,
        at: Option<usize>,
        (sender, group): (IpAddr, Qpn),
        member: Qpn,
    ) -> Result<(), Error> {
        match at {
            None => {
                let key = crate::multicast::GroupKey { sender, id: group };
                let evicted = self.root.evict(&key, member);
                evicted.map_err(|e| RemoteError::Refused(e.to_string()).into())
            }
            Some(at) => self.remotes[at].evict(group, member),
        }
    }

    pub(super) fn status(
        &self,
        at: Option<usize>,
        (sender, group): (IpAddr, Qpn),
    ) -> Result<RemoteStatus, Error> {
        match at {
            None => {
                let key = crate::multicast::GroupKey { sender, id: group };
                self.root.group_status(&key).ok_or_else(|| RemoteError::NoGroup.into())
            }
            Some(at) => self.remotes[at].status(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(switches: &[PlannedSwitch]) -> Vec<Option<usize>> {
        switches.iter().map(|switch| switch.at).collect()
    }

    #[test]
    fn switches_copy_where_paths_part() {
        // Switch 1 is behind switch 0; members 0 and 1 are behind 1, and member 2 behind 0.
        let shape = Shape::new(vec![Some(1), Some(1), Some(0), None], vec![None, Some(0)]).unwrap();
        let all = plan(&shape, &[0, 1, 2, 3]).unwrap();
        assert_eq!(at(&all), [None, Some(0), Some(1)]);
        assert_eq!(all[0].children, [Child::Switch(1), Child::Member(3)]);
        assert_eq!(all[1].children, [Child::Switch(2), Child::Member(2)]);
        assert_eq!(all[2].children, [Child::Member(0), Child::Member(1)]);
        // A switch with one member behind it has nothing to copy, and one with one switch neither.
        let two = plan(&shape, &[0, 2]).unwrap();
        assert_eq!(at(&two), [None, Some(0)]);
        assert_eq!(two[1].children, [Child::Member(0), Child::Member(2)]);
        let two = plan(&shape, &[0, 1]).unwrap();
        assert_eq!(at(&two), [None, Some(1)]);
        assert_eq!(two[0].children, [Child::Switch(1)]);
        let one = plan(&shape, &[1]).unwrap();
        assert_eq!(at(&one), [None]);
        assert_eq!(one[0].children, [Child::Member(1)]);
        assert_eq!(plan(&shape, &[]), Err(PlanError::Members(0)));
    }
}
