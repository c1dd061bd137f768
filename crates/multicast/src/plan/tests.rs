use core::net::{IpAddr, Ipv4Addr};
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Host(usize),
    Leaf(usize),
    Spine(usize),
}

/// Leaves with hosts, and spines that join all leaves.
struct LeafSpine {
    per_leaf: usize,
    spines: usize,
    spines_copy: bool,
}

fn addr_of(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + host as u32))
}

fn host_of(addr: IpAddr) -> usize {
    match addr {
        IpAddr::V4(v4) => (u32::from(v4) - 0x0a00_0001) as usize,
        IpAddr::V6(_) => unreachable!("addresses here are IPv4"),
    }
}

impl Network for LeafSpine {
    type Node = Node;

    fn next_hops(&self, at: Node, dst: IpAddr) -> Vec<Node> {
        let host = host_of(dst);
        let leaf = host / self.per_leaf;
        match at {
            Node::Host(at) => vec![Node::Leaf(at / self.per_leaf)],
            Node::Leaf(at) if at == leaf => vec![Node::Host(host)],
            Node::Leaf(_) => (0..self.spines).map(Node::Spine).collect(),
            Node::Spine(_) => vec![Node::Leaf(leaf)],
        }
    }

    fn is_host(&self, node: Node) -> bool {
        matches!(node, Node::Host(_))
    }

    fn is_programmable(&self, node: Node) -> bool {
        self.spines_copy || !matches!(node, Node::Spine(_))
    }
}

/// Follows a packet of the group through the network, always taking the `choice`-th of several
/// paths. Returns the members that get it, and how many links it took.
fn walk(
    network: &LeafSpine,
    plan: &Plan<Node>,
    members: &[IpAddr],
    choice: usize,
) -> (Vec<usize>, usize) {
    let mut reached = Vec::new();
    let mut links = 0;
    // Copies in flight: where, to which address, and for which member if that is determined.
    let mut copies = vec![(plan.root, members[0], None)];
    while let Some((at, dst, settled)) = copies.pop() {
        let out = match plan.rules.get(&at).filter(|_| settled.is_none()) {
            Some(branches) => branches
                .iter()
                .map(|b| (b.dst, (b.members.len() == 1).then(|| b.members[0])))
                .collect(),
            None => vec![(dst, settled)],
        };
        for (dst, settled) in out {
            let hops = network.next_hops(at, dst);
            let next = hops[choice % hops.len()];
            links += 1;
            match next {
                Node::Host(host) => {
                    assert_eq!(addr_of(host), dst);
                    reached.push(settled.expect("a host gets what was rewritten for a member"));
                }
                _ => copies.push((next, dst, settled)),
            }
        }
    }
    reached.sort_unstable();
    (reached, links)
}

/// Links of the smallest tree in which copies are made as late as possible.
fn tree_links(network: &LeafSpine, sender: usize, members: &[IpAddr]) -> usize {
    let home = sender / network.per_leaf;
    let leaves: BTreeSet<usize> = members
        .iter()
        .map(|m| host_of(*m) / network.per_leaf)
        .filter(|leaf| *leaf != home)
        .collect();
    let up = usize::from(!leaves.is_empty());
    members.len() + leaves.len() + up
}

proptest! {
    #[test]
    fn every_member_gets_one_copy_over_the_smallest_tree(
        (per_leaf, spines) in (1_usize..5, 1_usize..4),
        hosts in prop::collection::vec(0_usize..16, 1..16),
        sender in 0_usize..16,
        choice: usize,
    ) {
        let network = LeafSpine { per_leaf, spines, spines_copy: true };
        let members: Vec<IpAddr> = hosts.iter().map(|host| addr_of(*host)).collect();
        let plan = bifurcate(&network, Node::Host(sender), &members).expect("all is reachable");
        prop_assert_eq!(plan.root, Node::Leaf(sender / per_leaf));
        let (reached, links) = walk(&network, &plan, &members, choice);
        prop_assert_eq!(reached, (0..members.len()).collect::<Vec<_>>());
        prop_assert_eq!(links, tree_links(&network, sender, &members));
    }

    #[test]
    fn racks_alone_can_copy(
        hosts in prop::collection::vec(0_usize..16, 1..16),
        choice: usize,
    ) {
        let network = LeafSpine { per_leaf: 4, spines: 2, spines_copy: false };
        let members: Vec<IpAddr> = hosts.iter().map(|host| addr_of(*host)).collect();
        let plan = bifurcate(&network, Node::Host(0), &members).expect("all is reachable");
        prop_assert!(plan.rules.keys().all(|node| matches!(node, Node::Leaf(_))));
        let (reached, _) = walk(&network, &plan, &members, choice);
        prop_assert_eq!(reached, (0..members.len()).collect::<Vec<_>>());
    }
}

#[test]
fn a_group_of_one_and_members_at_one_address_have_rules() {
    let network = LeafSpine { per_leaf: 4, spines: 2, spines_copy: true };
    let plan = bifurcate(&network, Node::Host(0), &[addr_of(9)]).expect("reachable");
    let alone = PlannedBranch { dst: addr_of(9), members: vec![0] };
    assert_eq!(plan.rules, BTreeMap::from([(Node::Leaf(0), vec![alone])]));
    let plan = bifurcate(&network, Node::Host(0), &[addr_of(9); 2]).expect("reachable");
    let branches = [0, 1].map(|m| PlannedBranch { dst: addr_of(9), members: vec![m] });
    assert_eq!(plan.rules, BTreeMap::from([(Node::Leaf(2), branches.to_vec())]));
}

/// Routes that join again: to hosts 1 and 2 over 11, to 3 and 4 over 11 or 12, and 11 leads to 13.
struct Meeting;

impl Network for Meeting {
    type Node = usize;

    fn next_hops(&self, at: usize, dst: IpAddr) -> Vec<usize> {
        let host = host_of(dst);
        match at {
            0 => vec![10],
            10 if host <= 2 => vec![11],
            10 => vec![11, 12],
            11 | 12 => vec![13],
            13 => vec![host],
            _ => Vec::new(),
        }
    }

    fn is_host(&self, node: usize) -> bool {
        node < 10
    }
}

#[test]
fn branches_that_would_meet_again_are_all_made_at_the_root() {
    let members = [1, 2, 3, 4].map(addr_of);
    let plan = bifurcate(&Meeting, 0, &members).expect("reachable");
    assert_eq!(plan.rules.len(), 1);
    assert_eq!(plan.rules[&10].len(), 4);
}

#[test]
fn what_cannot_be_planned_says_why() {
    let network = LeafSpine { per_leaf: 4, spines: 2, spines_copy: true };
    let sender = Node::Host(0);
    assert_eq!(bifurcate(&network, sender, &[]), Err(PlanError::Members(0)));
    assert_eq!(bifurcate(&network, sender, &[addr_of(1); 65]), Err(PlanError::Members(65)));
    assert_eq!(bifurcate(&Meeting, 5, &[addr_of(1)]), Err(PlanError::Unreachable(0)));
    assert_eq!(bifurcate(&network, Node::Leaf(0), &[addr_of(9)]), Err(PlanError::NoRoot));
}
