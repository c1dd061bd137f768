//! A group over a tree of switches.

use std::net::IpAddr;

use bowline_multicast::Policy;
use bowline_wire::{Psn, Qpn};

use super::tree::{Child, PlannedSwitch};
use super::{GroupSpec, RemoteError, RemoteStatus, SwitchTree};
use crate::Error;
use crate::endpoint::{Endpoint, RemoteMr};
use crate::multicast::home::Home;
use crate::multicast::{
    ConnectGroupError, Connected, GroupMember, GroupOptions, GroupSwitch, Reserved,
};

/// The part of a group at one switch.
#[derive(Debug)]
struct Node {
    at: Option<usize>,
    children: Vec<Child>,
    /// IDs of the children, in their order.
    ids: Vec<Qpn>,
    /// All IDs that were ever reserved for this part.
    reserved: Reserved,
    /// The ID of a member whose join was refused, for the next one.
    spare: Option<Qpn>,
    /// What the children offer.
    offers: Vec<GroupMember>,
    /// What the next switch towards the sender seems to be, and what it connects to.
    connected: Option<(Endpoint, Connected)>,
    has_ended: bool,
}

/// A group over a [`SwitchTree`]. Dropping it removes the tables from all switches.
pub struct TreeGroup<'a> {
    tree: &'a SwitchTree<'a>,
    /// The root first, and every switch before those behind it.
    nodes: Vec<Node>,
    /// Its first members, in the order in which they were listed.
    members: Vec<usize>,
    options: GroupOptions,
    epoch: u64,
}

impl<'a> TreeGroup<'a> {
    pub(super) fn reserve(
        tree: &'a SwitchTree<'a>,
        planned: Vec<PlannedSwitch>,
        members: Vec<usize>,
    ) -> Result<TreeGroup<'a>, Error> {
        let options = GroupOptions::default();
        // If a switch refuses, dropping this frees what the others have reserved.
        let mut group = TreeGroup { tree, nodes: Vec::new(), members, options, epoch: 0 };
        for PlannedSwitch { at, children } in planned {
            let reserved = tree.reserve_at(at, children.len())?;
            let (ids, offers) = (reserved.ids.clone(), Vec::new());
            let (connected, spare, has_ended) = (None, None, false);
            let node = Node { at, children, ids, reserved, spare, offers, connected, has_ended };
            group.nodes.push(node);
        }
        Ok(group)
    }

    /// Adds what the members offer, in the order in which they were listed. Returns what the sender
    /// connects to and may write; the sender's own queue pair is not needed for that.
    ///
    /// # Errors
    /// If the members cannot form a group.
    pub fn offer(&mut self, offers: Vec<GroupMember>) -> Result<(Endpoint, Vec<RemoteMr>), Error> {
        if offers.len() != self.members.len() {
            return Err(ConnectGroupError::NoMembers.into());
        }
        let mut told: Vec<Option<GroupMember>> = vec![None; self.nodes.len()];
        for index in (0..self.nodes.len()).rev() {
            let offered = self.nodes[index].children.iter().map(|child| match child {
                Child::Switch(below) => told[*below].clone(),
                Child::Member(number) => {
                    let at = self.members.iter().position(|member| member == number);
                    at.map(|at| offers[at].clone())
                }
            });
            let offered: Option<Vec<GroupMember>> = offered.collect();
            let offered = offered.ok_or(ConnectGroupError::NoMembers)?;
            let node = &mut self.nodes[index];
            node.offers = offered;
            let first = node.offers.first().ok_or(ConnectGroupError::NoMembers)?;
            // The PSN is one that nobody else knows: a group never sends requests to its sender.
            let info = self.tree.info(node.at);
            let stand_in = Endpoint { addr: info.origin.addr, ..first.endpoint };
            let connected = node.prepare(self.tree, &stand_in)?;
            let Connected { for_sender: endpoint, regions, .. } = connected;
            told[index] = Some(GroupMember { endpoint, regions });
        }
        let first = told.into_iter().next().flatten().ok_or(ConnectGroupError::NoMembers)?;
        Ok((first.endpoint, first.regions))
    }

    /// Installs the tables, those next to the members first. The members must have
    /// [offered](Self::offer) their queue pairs.
    ///
    /// # Errors
    /// If a switch rejects its table.
    pub fn connect(&mut self, sender: &Endpoint, options: &GroupOptions) -> Result<(), Error> {
        if self.nodes.len() > 1 {
            check_policy(options.policy)?;
        }
        self.options = *options;
        let mut senders = vec![*sender; self.nodes.len()];
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            let connected = node.prepare(self.tree, &senders[index])?;
            for (child, endpoint) in node.children.iter().zip(&connected.for_members) {
                if let Child::Switch(below) = child {
                    senders[*below] = *endpoint;
                }
            }
            node.connected = Some((senders[index], connected));
        }
        self.epoch += 1;
        for index in (0..self.nodes.len()).rev() {
            let node = &self.nodes[index];
            let spec = self.spec(index, &node.ids, &node.offers, None)?;
            self.tree.install(node.at, spec)?;
        }
        Ok(())
    }

    /// The group ID, which the sender's queue pair has as its peer.
    pub fn id(&self) -> Qpn {
        self.nodes[0].reserved.group
    }

    /// The version of the tables. It rises with each change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The address of the switch that a member connects to, and its member ID there. Known before
    /// the member's queue pair is.
    pub fn peer_of(&self, member: usize) -> Option<(IpAddr, Qpn)> {
        let (node, child) = self.find(member)?;
        let node = &self.nodes[node];
        Some((self.tree.info(node.at).origin.addr, node.ids[child]))
    }

    /// Whom the sender's queue pair connects to; `None` before the group is connected.
    pub fn for_sender(&self) -> Option<Endpoint> {
        self.nodes[0].connected.as_ref().map(|(_, connected)| connected.for_sender)
    }

    /// The members' memory, as the sender addresses it.
    pub fn regions(&self) -> &[RemoteMr] {
        self.nodes[0].connected.as_ref().map_or(&[], |(_, connected)| &connected.regions)
    }

    /// Whom the queue pair of each member connects to, in the order in which they were listed.
    /// Empty before the group is connected.
    pub fn for_members(&self) -> Vec<Endpoint> {
        let peer = |member: &usize| {
            let (node, child) = self.find(*member)?;
            let (_, connected) = self.nodes[node].connected.as_ref()?;
            connected.for_members.get(child).copied()
        };
        self.members.iter().filter_map(peer).collect()
    }

    /// What the switch of a member knows about the group.
    ///
    /// # Errors
    /// If the member is not in the group, or the switch cannot be asked.
    pub fn status_at(&self, member: usize) -> Result<RemoteStatus, Error> {
        let (node, _) = self.find(member).ok_or(NOT_IN)?;
        self.status(node)
    }

    /// Takes a member out. Completions from now on do not cover it.
    ///
    /// # Errors
    /// If it is not in the group, is the last one, or the switch rejects the change.
    pub fn leave(&mut self, member: usize) -> Result<(), Error> {
        let (mut index, mut child) = self.find(member).ok_or(NOT_IN)?;
        let mut ended = Vec::new();
        // A switch without members leaves too.
        while self.nodes[index].children.len() == 1 {
            ended.push(index);
            let of = Child::Switch(index);
            let above = self.position(of);
            (index, child) = above.ok_or(ConnectGroupError::NoMembers)?;
        }
        let node = &self.nodes[index];
        let (mut ids, mut offers) = (node.ids.clone(), node.offers.clone());
        ids.remove(child);
        offers.remove(child);
        self.change(index, &ids, &offers, None)?;
        let node = &mut self.nodes[index];
        node.children.remove(child);
        (node.ids, node.offers) = (ids, offers);
        for index in ended {
            self.end(index);
        }
        Ok(())
    }

    /// Orders the switch of a member to go on without it, as its policy would.
    ///
    /// # Errors
    /// If it is not in the group, or the group needs it.
    pub fn evict(&self, member: usize) -> Result<(), Error> {
        let (node, child) = self.find(member).ok_or(NOT_IN)?;
        let node = &self.nodes[node];
        let (sender, _) = node.connected.as_ref().ok_or(NOT_IN)?;
        self.tree.evict(node.at, (sender.addr, node.reserved.group), node.ids[child])
    }

    /// Adds a member while nothing is outstanding, and returns what its queue pair connects to. It
    /// gets what is sent from now on.
    ///
    /// # Errors
    /// If packets are outstanding, the member does not fit the group, or a switch rejects it. Then
    /// the group is as before.
    pub fn join(&mut self, member: usize, offer: GroupMember) -> Result<Endpoint, Error> {
        let live = |place| self.nodes.iter().position(|node| !node.has_ended && node.at == place);
        let index = self.tree.nearest(member, live).ok_or(NOT_IN)?;
        if self.find(member).is_some() {
            return Err(RemoteError::Shape("the member is in the group already").into());
        }
        let node = &self.nodes[index];
        let (_, connected) = node.connected.as_ref().ok_or(NOT_IN)?;
        fits(connected, &offer)?;
        let peer = connected.for_sender;
        let next = self.status(index)?.next_psn.ok_or(NOT_IN)?;
        let id = match node.spare {
            Some(id) => id,
            None => self.tree.reserve_one(node.at, node.reserved.group)?,
        };
        let (mut ids, mut offers) = (node.ids.clone(), node.offers.clone());
        ids.push(id);
        offers.push(offer);
        let node = &mut self.nodes[index];
        if node.spare.replace(id).is_none() {
            node.reserved.ids.push(id);
        }
        self.change(index, &ids, &offers, Some(next))?;
        let node = &mut self.nodes[index];
        node.spare = None;
        node.children.push(Child::Member(member));
        (node.ids, node.offers) = (ids, offers);
        Ok(Endpoint { qpn: id, psn: next, ..peer })
    }

    fn find(&self, member: usize) -> Option<(usize, usize)> {
        self.position(Child::Member(member))
    }

    /// The switch that copies to a child, and the child's place there.
    fn position(&self, child: Child) -> Option<(usize, usize)> {
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| !node.has_ended);
        let mut places = nodes.filter_map(|(index, node)| {
            let at = node.children.iter().position(|other| *other == child)?;
            Some((index, at))
        });
        places.next()
    }

    fn status(&self, index: usize) -> Result<RemoteStatus, Error> {
        let node = &self.nodes[index];
        let (sender, _) = node.connected.as_ref().ok_or(NOT_IN)?;
        self.tree.status(node.at, (sender.addr, node.reserved.group))
    }

    /// Replaces the table of one switch. If it is rejected, the old one stays.
    fn change(
        &mut self,
        index: usize,
        ids: &[Qpn],
        offers: &[GroupMember],
        joins_at: Option<Psn>,
    ) -> Result<(), Error> {
        self.epoch += 1;
        let spec = self.spec(index, ids, offers, joins_at)?;
        self.tree.install(self.nodes[index].at, spec)
    }

    fn spec(
        &self,
        index: usize,
        ids: &[Qpn],
        offers: &[GroupMember],
        joins_at: Option<Psn>,
    ) -> Result<GroupSpec, Error> {
        let node = &self.nodes[index];
        let (sender, connected) = node.connected.as_ref().ok_or(NOT_IN)?;
        Ok(GroupSpec {
            group: node.reserved.group,
            epoch: self.epoch,
            policy: self.policy_at(index),
            as_in_the_paper: self.options.as_in_the_paper,
            joins_at,
            // All switches have the MTU of the whole group.
            sender: Endpoint { mtu: connected.for_sender.mtu, ..*sender },
            regions: connected.regions.clone(),
            members: ids.iter().copied().zip(offers.iter().cloned()).collect(),
        })
    }

    /// A switch waits longer than those behind it, which must be the first to evict.
    fn policy_at(&self, index: usize) -> Policy {
        match self.options.policy {
            Policy::Evict { after_ns, least } => {
                let after_ns = after_ns.saturating_mul(self.height(index));
                Policy::Evict { after_ns, least }
            }
            policy => policy,
        }
    }

    fn height(&self, index: usize) -> u64 {
        let below = self.nodes[index].children.iter().map(|child| match child {
            Child::Switch(below) => self.height(*below),
            Child::Member(_) => 0,
        });
        1 + below.max().unwrap_or(0)
    }

    fn end(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if !std::mem::replace(&mut node.has_ended, true) {
            let sender = node.connected.as_ref().map(|(sender, _)| sender.addr);
            self.tree.remove(node.at, sender, &node.reserved);
        }
    }
}

impl Node {
    /// What the ends of this part connect to.
    fn prepare(&self, tree: &SwitchTree<'_>, sender: &Endpoint) -> Result<Connected, Error> {
        let info = tree.info(self.at);
        let reserved = Reserved { group: self.reserved.group, ids: self.ids.clone() };
        let home = Home::Switch(info.origin, info.mtu);
        let (_, connected) =
            home.prepare(&reserved, sender, &self.offers, &GroupOptions::default())?;
        Ok(connected)
    }
}

impl Drop for TreeGroup<'_> {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|index| self.end(index));
    }
}

const NOT_IN: RemoteError = RemoteError::Shape("the member has no place in the group");

/// A quorum counts members, and a switch counts what is directly behind it.
fn check_policy(policy: Policy) -> Result<(), Error> {
    let is_carried = match policy {
        Policy::Fail => true,
        Policy::Evict { least, .. } => least <= 1,
        Policy::Quorum { .. } => false,
    };
    if is_carried {
        return Ok(());
    }
    let why = "several switches do not count members together: use `fail` or `evict=TIME`";
    Err(Error::Invalid { what: "policy", why: why.to_owned() })
}

/// Whether a member can join without a change for the sender.
fn fits(connected: &Connected, offer: &GroupMember) -> Result<(), Error> {
    let (ours, theirs) = (&connected.regions, &offer.regions);
    let is_long = ours.iter().zip(theirs).all(|(ours, theirs)| theirs.len >= ours.len);
    if ours.len() != theirs.len() || !is_long || offer.endpoint.mtu < connected.for_sender.mtu {
        let why = "it offers less memory than the group's others, or a smaller MTU".to_owned();
        return Err(Error::Invalid { what: "member", why });
    }
    Ok(())
}

impl GroupSwitch {
    /// Installs what a controller asks for: a group, or a newer version of it.
    pub(super) fn install_group(&self, spec: &GroupSpec) -> Result<(), Error> {
        let own = self.info().origin.addr;
        let ends = spec.members.iter().map(|(_, member)| member.endpoint.addr);
        if ends.chain([spec.sender.addr]).any(|addr| addr == own) {
            return Err(RemoteError::Itself.into());
        }
        self.install_spec(spec)
    }
}
