//! Groups over switches that a controller gives their tables, over real sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::multicast::{
    Cause, Event, GroupMember, GroupOptions, GroupSwitch, Policy, RemoteSwitch, Shape,
    SwitchOptions, SwitchTree, TreeGroup,
};
use bowline::{ConnectOptions, Connector, Device, Error, Listener, QpType, WcStatus};

mod common;

use common::End;

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 128 << 10;

fn end(net: u8, host: usize) -> End {
    let device = Device::open(&format!("127.{net}.0.{host}")).expect("the address is free");
    End::on(&device, QpType::Rc)
}

fn offer_of(end: &End) -> GroupMember {
    GroupMember { endpoint: end.qp.endpoint(), regions: vec![end.mr.remote()] }
}

fn open(net: u8, host: u8, link: Option<&str>) -> Arc<GroupSwitch> {
    let addr = IpAddr::from([127, net, 0, host]);
    let link = link.map(|text| text.parse().expect("a right profile"));
    Arc::new(GroupSwitch::open(&SwitchOptions { link, ..SwitchOptions::new(addr) }).unwrap())
}

/// A managed switch, which serves controllers one after the other.
fn managed(net: u8, host: u8, link: Option<&str>) -> (Arc<GroupSwitch>, SocketAddr) {
    let switch = open(net, host, link);
    let listener = Listener::bind((IpAddr::from([127, net, 0, host]), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let serving = Arc::clone(&switch);
    std::thread::spawn(move || {
        while let Ok(mut channel) = listener.accept() {
            let _ = serving.serve_controller(&mut channel);
        }
    });
    (switch, at)
}

fn remote(at: SocketAddr) -> RemoteSwitch {
    RemoteSwitch::new(Connector::new().connect(at).unwrap()).unwrap()
}

fn bytes_of(round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i.wrapping_mul(round * 2 + 1) >> 3) as u8).collect()
}

fn write(sender: &End, group: &TreeGroup<'_>, round: u64) -> WcStatus {
    sender.mr.write_at(0, &bytes_of(round));
    sender.qp.write(round, &sender.mr, 0..BYTES, group.regions()[0]).unwrap();
    match sender.cq.next(PATIENCE) {
        Ok(completion) => completion.status,
        Err(Error::Completion(failed)) => failed.status,
        Err(error) => panic!("{error}"),
    }
}

fn has(member: &End, round: u64) -> bool {
    member.mr.to_vec(0, BYTES) == bytes_of(round)
}

/// Connects all ends of a group.
fn connect(sender: &End, members: &[End], group: &TreeGroup<'_>) {
    for (member, endpoint) in members.iter().zip(group.for_members()) {
        member.qp.connect(&endpoint).unwrap();
    }
    let patient = ConnectOptions { timeout: 15, ..ConnectOptions::default() };
    sender.qp.connect_with(&group.for_sender().unwrap(), &patient).unwrap();
}

/// Members 0, 1 and 4 are behind switch 1, which is behind switch 0, with member 2; member 3 is
/// behind the root.
fn shape() -> Shape {
    let members = vec![Some(1), Some(1), Some(0), None, Some(1)];
    Shape::new(members, vec![None, Some(0)]).unwrap()
}

#[test]
fn a_group_over_three_levels_changes_while_it_is_used() {
    let root = open(220, 100, None);
    let (middle, middle_at) = managed(220, 101, Some("loss=0.5%,seed=2"));
    let (last, last_at) = managed(220, 102, Some("loss=0.5%,seed=3"));
    let tree = SwitchTree::new(&root, vec![remote(middle_at), remote(last_at)], shape()).unwrap();
    let sender = end(220, 1);
    let mut members: Vec<End> = (0..4).map(|member| end(220, 2 + member)).collect();
    let offers: Vec<_> = members.iter().map(offer_of).enumerate().collect();
    let mut group = tree.connect(&sender.qp.endpoint(), &offers, &GroupOptions::default()).unwrap();
    connect(&sender, &members, &group);
    assert_eq!((root.groups().len(), middle.groups().len(), last.groups().len()), (1, 1, 1));
    for round in 0..5 {
        assert_eq!(write(&sender, &group, round), WcStatus::Success);
        assert!(members.iter().all(|member| has(member, round)), "round {round}");
    }
    // One copy goes to each switch, whatever is behind it.
    assert_eq!(root.groups()[0].branches.len(), 2);
    assert_eq!(group.epoch(), 1);

    group.leave(0).unwrap();
    assert_eq!(write(&sender, &group, 10), WcStatus::Success);
    assert!(has(&members[0], 4), "what has left gets nothing more");
    assert!(members[1..].iter().all(|member| has(member, 10)));
    assert_eq!((group.epoch(), last.groups()[0].epoch, middle.groups()[0].epoch), (2, 2, 1));

    members.push(end(220, 6));
    let peer = group.join(4, offer_of(&members[4])).unwrap();
    assert_eq!(peer.addr, IpAddr::from([127, 220, 0, 102]), "it joins the switch before it");
    members[4].qp.connect(&peer).unwrap();
    assert_eq!(write(&sender, &group, 11), WcStatus::Success);
    assert!(members[1..].iter().all(|member| has(member, 11)));
    assert!(group.join(4, offer_of(&members[4])).is_err(), "it is in the group already");

    // Evicted by order, and by leaving: then nothing is behind the last switch.
    group.evict(1).unwrap();
    let event = last.poll_event().expect("it says who left");
    assert!(matches!(event, Event::Evicted { cause: Cause::Ordered, .. }), "{event:?}");
    group.leave(1).unwrap();
    group.leave(4).unwrap();
    assert!(last.groups().is_empty());
    assert_eq!(write(&sender, &group, 12), WcStatus::Success);
    assert!(has(&members[2], 12) && has(&members[3], 12) && has(&members[4], 11));
    group.leave(2).unwrap();
    assert!(group.leave(3).is_err(), "somebody must be there");
    assert_eq!(write(&sender, &group, 13), WcStatus::Success);
    assert!(has(&members[3], 13) && has(&members[2], 12));
    drop(group);
    assert!(root.groups().is_empty() && middle.groups().is_empty());
}

#[test]
fn a_member_joins_between_messages_only() {
    let root = open(221, 100, None);
    let (_middle, middle_at) = managed(221, 101, None);
    let (_last, last_at) = managed(221, 102, None);
    let tree = SwitchTree::new(&root, vec![remote(middle_at), remote(last_at)], shape()).unwrap();
    let sender = end(221, 1);
    let mut members: Vec<End> = (0..4).map(|member| end(221, 2 + member)).collect();
    let offers: Vec<_> = members.iter().map(offer_of).enumerate().collect();
    let mut group = tree.connect(&sender.qp.endpoint(), &offers, &GroupOptions::default()).unwrap();
    connect(&sender, &members, &group);
    assert_eq!(write(&sender, &group, 1), WcStatus::Success);
    let before = group.status_at(0).unwrap();
    // Nobody has posted a receive: the message stays outstanding.
    sender.qp.send(2, &sender.mr, 0..BYTES).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while group.status_at(0).unwrap().next_psn == before.next_psn {
        assert!(Instant::now() < deadline, "nothing was sent");
    }
    members.push(end(221, 6));
    // However often it is tried: refused members use up no IDs.
    for _ in 0..1100 {
        let error = group.join(4, offer_of(&members[4])).expect_err("a message is on its way");
        // More of the message may arrive while this is asked.
        let why = error.to_string();
        assert!(why.contains("outstanding") || why.contains("join again"), "{why}");
    }
    for member in &members[..4] {
        member.qp.recv(2, &member.mr, 0..BYTES).unwrap();
    }
    assert_eq!(sender.cq.next(PATIENCE).unwrap().status, WcStatus::Success);
    let peer = group.join(4, offer_of(&members[4])).unwrap();
    members[4].qp.connect(&peer).unwrap();
    assert_eq!(write(&sender, &group, 3), WcStatus::Success);
    assert!(members.iter().all(|member| has(member, 3)));
}

#[test]
fn a_switch_that_restarts_acknowledges_nothing() {
    let root = open(222, 100, None);
    let (middle, middle_at) = managed(222, 101, None);
    let shape = Shape::new(vec![Some(0), Some(0)], vec![None]).unwrap();
    let tree = SwitchTree::new(&root, vec![remote(middle_at)], shape).unwrap();
    let sender = end(222, 1);
    let members: Vec<End> = (0..2).map(|member| end(222, 2 + member)).collect();
    let offers: Vec<_> = members.iter().map(offer_of).enumerate().collect();
    let group = tree.connect(&sender.qp.endpoint(), &offers, &GroupOptions::default()).unwrap();
    connect(&sender, &members, &group);
    assert_eq!(write(&sender, &group, 1), WcStatus::Success);
    // As after a restart: it has no table, and the same address.
    let status = middle.groups();
    middle.disconnect(&bowline::multicast::Connected {
        group: status[0].key,
        for_sender: sender.qp.endpoint(),
        regions: Vec::new(),
        for_members: Vec::new(),
        ids: Vec::new(),
    });
    assert_eq!(write(&sender, &group, 2), WcStatus::RetryExcErr);
    assert!(members.iter().all(|member| has(member, 1)), "nobody has what was not acknowledged");
}

#[test]
fn a_group_that_one_switch_refuses_is_nowhere() {
    let root = open(223, 100, None);
    let (middle, middle_at) = managed(223, 101, None);
    let shape = Shape::new(vec![Some(0), Some(0), None], vec![None]).unwrap();
    let tree = SwitchTree::new(&root, vec![remote(middle_at)], shape).unwrap();
    let sender = end(223, 1);
    let members: Vec<End> = (0..3).map(|member| end(223, 2 + member)).collect();
    let mut offers: Vec<_> = members.iter().map(offer_of).enumerate().collect();
    let quorum = Policy::Quorum { k: 2, after_ns: 1 };
    let options = GroupOptions { policy: quorum, ..GroupOptions::default() };
    let error = tree.connect(&sender.qp.endpoint(), &offers, &options).err().unwrap();
    assert!(error.to_string().contains("evict=TIME"), "{error}");
    // The managed switch finds itself among its members; the root would not mind.
    offers[0].1.endpoint.addr = [127, 223, 0, 101].into();
    let options = GroupOptions::default();
    let error = tree.connect(&sender.qp.endpoint(), &offers, &options).err().unwrap();
    assert!(error.to_string().contains("the switch refused"), "{error}");
    assert!(root.groups().is_empty() && middle.groups().is_empty());
}

#[test]
fn the_switch_next_to_a_dead_member_evicts_it_and_the_root_a_dead_switch() {
    let root = open(224, 100, None);
    let (middle, middle_at) = managed(224, 101, None);
    let shape = Shape::new(vec![Some(0), Some(0), None], vec![None]).unwrap();
    let tree = SwitchTree::new(&root, vec![remote(middle_at)], shape).unwrap();
    let sender = end(224, 1);
    let mut members: Vec<End> = (0..3).map(|member| end(224, 2 + member)).collect();
    let offers: Vec<_> = members.iter().map(offer_of).enumerate().collect();
    let policy = Policy::Evict { after_ns: 200_000_000, least: 1 };
    let options = GroupOptions { policy, ..GroupOptions::default() };
    let group = tree.connect(&sender.qp.endpoint(), &offers, &options).unwrap();
    connect(&sender, &members, &group);
    assert_eq!(write(&sender, &group, 1), WcStatus::Success);
    drop(members.remove(0));
    assert_eq!(write(&sender, &group, 2), WcStatus::Success);
    assert!(members.iter().all(|member| has(member, 2)));
    let event = middle.poll_event().expect("it says who left");
    assert!(matches!(event, Event::Evicted { cause: Cause::Behind, .. }), "{event:?}");
    assert_eq!(root.poll_event(), None, "the root waits longer");
    // Nobody answers for the managed switch any more.
    drop(members.remove(0));
    assert_eq!(write(&sender, &group, 3), WcStatus::Success);
    assert!(has(&members[0], 3));
    let event = root.poll_event().expect("it says which branch left");
    assert!(matches!(event, Event::Evicted { .. }), "{event:?}");
}
