//! A switch over real sockets, with a comparison of all bytes.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bowline::multicast::{
    Cause, ConnectGroupError, Connected, Counters, Event, Group as BowlineGroup, GroupMember,
    GroupOptions, GroupPort, GroupSwitch, Policy, SwitchOptions,
};
use bowline::{
    Completion, ConnectOptions, Connector, Cq, Device, Endpoint, Error, LinkProfile, Listener,
    PostError, QpType, WcStatus,
};

mod common;

use common::End;

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 256 << 10;

fn end(addr: &str, link: Option<LinkProfile>) -> End {
    let builder = Device::builder(addr.parse().expect("an address"));
    let builder = link.into_iter().fold(builder, |builder, link| builder.link(link));
    End::on(&builder.open().expect("the address is free"), QpType::Rc)
}

/// What copies and merges.
enum Home {
    Switch(GroupSwitch),
    Port(GroupPort),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Switch,
    Port,
}
use Where::{Port, Switch};

struct Group {
    home: Home,
    sender: End,
    members: Vec<End>,
    connected: Connected,
}

/// A group in 127.`net`.0.0/16. Members 0 and 1 share an address if there are three. What copies
/// sends over the link.
fn group(net: u8, at: Where, count: usize, link: Option<&str>, policy: Policy) -> Group {
    let link: Option<LinkProfile> = link.map(|text| text.parse().expect("a right profile"));
    let sender = end(&format!("127.{net}.0.1"), link.clone().filter(|_| at == Port));
    let host = |member: usize| if count == 3 { member.max(1) } else { member };
    let members: Vec<End> =
        (0..count).map(|member| end(&format!("127.{net}.0.{}", 2 + host(member)), None)).collect();
    let offers: Vec<GroupMember> = members
        .iter()
        .map(|m| GroupMember { endpoint: m.qp.endpoint(), regions: vec![m.mr.remote()] })
        .collect();
    let options = GroupOptions { policy, ..GroupOptions::default() };
    let (home, connected) = match at {
        Switch => {
            let addr: IpAddr = [127, net, 0, 100].into();
            let switch = GroupSwitch::open(&SwitchOptions { link, ..SwitchOptions::new(addr) });
            let switch = switch.expect("the address is free");
            let connected = switch.connect(&sender.qp.endpoint(), &offers, &options).unwrap();
            (Home::Switch(switch), connected)
        }
        Port => {
            let port = GroupPort::of(&sender.qp).unwrap();
            let connected = port.connect(&sender.qp.endpoint(), &offers, &options).unwrap();
            (Home::Port(port), connected)
        }
    };
    for (member, endpoint) in members.iter().zip(&connected.for_members) {
        member.qp.connect(endpoint).unwrap();
    }
    // 67 ms and seven retries, unless nobody is to die: then a busy machine may take its time.
    let timeout = if policy == Policy::Fail && count != 2 { 17 } else { 14 };
    let patient = ConnectOptions { timeout, ..ConnectOptions::default() };
    sender.qp.connect_with(&connected.for_sender, &patient).unwrap();
    Group { home, sender, members, connected }
}

fn bytes_of(round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i.wrapping_mul(round * 2 + 1) >> 3) as u8).collect()
}

fn completion(cq: &Cq) -> Completion {
    cq.next(PATIENCE).expect("in time")
}

impl Group {
    fn counters(&self) -> Counters {
        match &self.home {
            Home::Switch(switch) => switch.counters(),
            Home::Port(port) => port.counters(),
        }
    }

    fn poll_event(&self) -> Option<Event> {
        match &self.home {
            Home::Switch(switch) => switch.poll_event(),
            Home::Port(port) => port.poll_event(),
        }
    }

    /// Writes all of a member's memory, and looks at every live member's.
    fn write(&self, round: u64, live: &[usize]) {
        let bytes = bytes_of(round);
        self.sender.mr.write_at(0, &bytes);
        let region = self.connected.regions[0];
        self.sender.qp.write(round, &self.sender.mr, 0..BYTES, region).unwrap();
        assert_eq!(completion(&self.sender.cq).status, WcStatus::Success, "round {round}");
        for member in live {
            assert!(self.members[*member].mr.to_vec(0, BYTES) == bytes, "member {member}");
        }
    }

    fn send(&self, round: u64) {
        let bytes = bytes_of(round);
        self.sender.mr.write_at(0, &bytes);
        for member in &self.members {
            member.qp.recv(round, &member.mr, 0..BYTES).unwrap();
        }
        self.sender.qp.send(round, &self.sender.mr, 0..BYTES).unwrap();
        assert_eq!(completion(&self.sender.cq).status, WcStatus::Success);
        for member in &self.members {
            let received = completion(&member.cq);
            assert_eq!((received.status, received.byte_len), (WcStatus::Success, BYTES as u32));
            assert!(member.mr.to_vec(0, BYTES) == bytes);
        }
    }
}

#[test]
fn messages_reach_every_member_once() {
    for (net, at, members) in [
        (91, Switch, 1),
        (92, Switch, 2),
        (93, Switch, 3),
        (94, Switch, 7),
        (101, Port, 1),
        (102, Port, 2),
        (103, Port, 3),
        (104, Port, 7),
    ] {
        let group = group(net, at, members, None, Policy::Fail);
        let all: Vec<usize> = (0..members).collect();
        for round in 0..4 {
            group.write(round, &all);
            group.send(round + 100);
        }
        let counters = group.counters();
        assert!(counters.copies_out >= counters.data_in, "{counters:?}");
        assert!(counters.data_in > 0 && counters.acks_in > 0, "{counters:?}");
        assert_eq!(counters.drop_icrc + counters.drop_source, 0, "{counters:?}");
    }
}

#[test]
fn losses_on_the_branches_are_repaired() {
    for (net, at) in [(95, Switch), (105, Port)] {
        let group = group(net, at, 3, Some("loss=1%,seed=5"), Policy::Fail);
        for round in 0..8 {
            group.write(round, &[0, 1, 2]);
            group.send(round + 100);
        }
        let counters = group.counters();
        assert!(counters.naks_in > 0 && counters.filtered > 0, "{counters:?}");
    }
}

#[test]
fn reads_are_refused_before_they_are_sent() {
    for (net, at) in [(96, Switch), (106, Port)] {
        let group = group(net, at, 2, None, Policy::Fail);
        let region = group.connected.regions[0];
        let refused = group.sender.qp.read(2, &group.sender.mr, 0..64, region);
        assert!(matches!(refused, Err(Error::Post(PostError::NoReads))), "{refused:?}");
        group.write(1, &[0, 1]);
    }
}

#[test]
fn a_dead_member_is_evicted_and_named() {
    for (net, at) in [(97, Switch), (107, Port)] {
        let policy = Policy::Evict { after_ns: 150_000_000, least: 1 };
        let group = group(net, at, 3, None, policy);
        group.write(1, &[0, 1, 2]);
        group.members[2].qp.close().unwrap();
        group.write(2, &[0, 1]);
        let evicted = group.poll_event();
        let Some(Event::Evicted { member, cause: Cause::Behind, .. }) = evicted else {
            panic!("{evicted:?}");
        };
        assert_eq!(member, group.connected.ids[2]);
        group.write(3, &[0, 1]);
    }
}

#[test]
fn without_eviction_a_dead_member_fails_the_group() {
    for (net, at) in [(98, Switch), (108, Port)] {
        let group = group(net, at, 2, None, Policy::Fail);
        group.write(1, &[0, 1]);
        group.members[1].qp.close().unwrap();
        let region = group.connected.regions[0];
        group.sender.qp.write(2, &group.sender.mr, 0..BYTES, region).unwrap();
        match group.sender.cq.next(PATIENCE) {
            Err(Error::Completion(error)) => assert_eq!(error.status, WcStatus::RetryExcErr),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_cannot_be_a_group_says_why() {
    let group = group(99, Switch, 1, None, Policy::Fail);
    let (sender, options) = (group.sender.qp.endpoint(), GroupOptions::default());
    let offer = GroupMember { endpoint: group.members[0].qp.endpoint(), regions: vec![] };
    let Home::Switch(switch) = &group.home else { panic!("it was made with a switch") };
    let connect = |sender: Endpoint, members: &[GroupMember]| {
        let refused = switch.connect(&sender, members, &options);
        refused.expect_err("it cannot be").to_string()
    };
    assert!(connect(sender, &[]).contains("at least one member"));
    let datagrams = Endpoint { qp_type: QpType::Ud, ..sender };
    assert!(connect(datagrams, std::slice::from_ref(&offer)).contains("use RC"));
    let elsewhere = Endpoint { udp_port: 4000, ..sender };
    assert!(connect(elsewhere, std::slice::from_ref(&offer)).contains("UDP port 4000"));
    let more = GroupMember { regions: group.connected.regions.clone(), ..offer.clone() };
    assert!(connect(sender, &[offer.clone(), more]).contains("member 1 offers 1 regions"));
    let many = vec![offer.clone(); 65];
    assert!(connect(sender, &many).contains("1 to 64"));
    // A refusal leaves nothing behind.
    let port = GroupPort::of(&group.sender.qp).unwrap();
    for _ in 0..3 {
        let refused = port.connect(&sender, &many, &options).map(|_| ()).expect_err("it cannot be");
        assert!(matches!(refused, Error::Multicast(ConnectGroupError::Table(_))), "{refused}");
    }
}

/// A member as a separate program would be: it does not know of the group.
fn member(addr: String, listener: Listener) -> End {
    let end = end(&addr, None);
    let mut channel = listener.accept().unwrap();
    let peer = channel.connect(&end.qp, &[end.mr.remote()]).unwrap();
    assert_eq!(peer.regions.len(), 1, "members are told what the sender offers");
    end
}

#[test]
fn a_group_is_connected_over_channels_and_is_an_ordinary_qp() {
    for (net, at) in [(110, Switch), (111, Port)] {
        let sender = end(&format!("127.{net}.0.1"), None);
        let (mut channels, mut members) = (Vec::new(), Vec::new());
        for host in 2..5 {
            let addr = format!("127.{net}.0.{host}");
            let listener = Listener::bind((&*addr, 0)).unwrap();
            channels.push(Connector::new().connect(listener.local_addr().unwrap()).unwrap());
            members.push(std::thread::spawn(move || member(addr, listener)));
        }
        let (options, offer) = (GroupOptions::default(), [sender.mr.remote()]);
        let group = match at {
            Port => BowlineGroup::connect(&sender.qp, &offer, &mut channels, &options),
            Switch => {
                let addr: IpAddr = [127, net, 0, 100].into();
                let switch = Arc::new(GroupSwitch::open(&SwitchOptions::new(addr)).unwrap());
                BowlineGroup::connect_via(&switch, &sender.qp, &offer, &mut channels, &options)
            }
        };
        let group = group.unwrap();
        let members: Vec<End> = members.into_iter().map(|m| m.join().unwrap()).collect();
        let bytes = bytes_of(7);
        sender.mr.write_at(0, &bytes);
        sender.qp.write(1, &sender.mr, 0..BYTES, group.regions()[0]).unwrap();
        assert_eq!(completion(&sender.cq).status, WcStatus::Success);
        assert!(members.iter().all(|member| member.mr.to_vec(0, BYTES) == bytes));
        let records = group.records();
        assert_eq!(records.iter().map(|(id, _)| *id).collect::<Vec<_>>(), group.ids());
        assert!(records.iter().all(|(_, record)| record.is_live), "{records:?}");
        assert_eq!(group.poll_event(), None);
    }
}

/// Another queue pair of the same device, and memory.
fn another(end: &End) -> End {
    End::on(&end.device, QpType::Rc)
}

#[test]
fn groups_and_connections_of_one_port_do_not_meet() {
    let first = group(112, Port, 2, None, Policy::Fail);
    // The second group has the sender's own device among its members.
    let (sender, own, far) =
        (another(&first.sender), another(&first.sender), another(&first.members[0]));
    let port = GroupPort::of(&sender.qp).unwrap();
    let offer =
        |end: &End| GroupMember { endpoint: end.qp.endpoint(), regions: vec![end.mr.remote()] };
    let (offers, options) = ([offer(&far), offer(&own)], GroupOptions::default());
    let connected = port.connect(&sender.qp.endpoint(), &offers, &options).unwrap();
    for (member, endpoint) in [&far, &own].into_iter().zip(&connected.for_members) {
        member.qp.connect(endpoint).unwrap();
    }
    sender.qp.connect(&connected.for_sender).unwrap();
    let second = Group { home: Home::Port(port), sender, members: vec![far, own], connected };
    // And a connection as any other, both ways.
    let (here, there) = (another(&first.sender), another(&first.members[1]));
    here.qp.connect(&there.qp.endpoint()).unwrap();
    there.qp.connect(&here.qp.endpoint()).unwrap();
    for round in 0..4 {
        here.mr.write_at(0, &bytes_of(round + 50));
        there.mr.write_at(0, &bytes_of(round + 60));
        here.qp.write(1, &here.mr, 0..BYTES / 2, there.mr.remote()).unwrap();
        let upper = there.mr.remote().slice(BYTES as u64 / 2..BYTES as u64).unwrap();
        here.qp.read(2, &here.mr, BYTES / 2..BYTES, upper).unwrap();
        first.write(round, &[0, 1]);
        second.write(round + 10, &[0, 1]);
        second.send(round + 20);
        for _ in 0..2 {
            assert_eq!(completion(&here.cq).status, WcStatus::Success);
        }
        assert!(there.mr.to_vec(0, BYTES / 2) == bytes_of(round + 50)[..BYTES / 2]);
        assert!(here.mr.to_vec(BYTES / 2, BYTES / 2) == bytes_of(round + 60)[BYTES / 2..]);
    }
    // One that ends takes nothing from the other.
    let Home::Port(port) = &second.home else { panic!("it was made in a port") };
    port.disconnect(&second.connected);
    first.write(9, &[0, 1]);
}

/// Serves one sender's set-up for members that listen at these addresses.
fn relay(
    switch: &GroupSwitch,
    listener: &TcpListener,
    members: &[SocketAddr],
) -> Result<(), Error> {
    let (sender, _) = listener.accept().unwrap();
    let members = members.iter().map(|addr| TcpStream::connect(addr).unwrap()).collect();
    switch.relay(&sender, members, &GroupOptions::default())
}

#[test]
fn a_relay_makes_many_members_one_peer() {
    let switch = GroupSwitch::open(&SwitchOptions::new([127, 113, 0, 100].into())).unwrap();
    let listener = TcpListener::bind("127.113.0.100:0").unwrap();
    let (mut at, mut members) = (Vec::new(), Vec::new());
    for host in 2..5_u8 {
        let addr = format!("127.113.0.{host}");
        let listener = Listener::bind((&*addr, 0)).unwrap();
        at.push(listener.local_addr().unwrap());
        members.push(std::thread::spawn(move || {
            let end = end(&addr, None);
            let mut channel = listener.accept().unwrap();
            assert_eq!(channel.recv().unwrap(), b"what to do");
            channel.send(b"ok").unwrap();
            let peer = channel.connect(&end.qp, &[end.mr.remote()]).unwrap();
            assert_eq!(peer.regions.len(), 1, "members are told what the sender offers");
            channel.barrier().unwrap();
            // The last one disagrees in the end.
            channel.send(if host == 4 { b"no" } else { b"ok" }).unwrap();
            (end, channel)
        }));
    }
    let sender = end("127.113.0.1", None);
    std::thread::scope(|scope| {
        let relayed = scope.spawn(|| relay(&switch, &listener, &at));
        let mut channel = Connector::new().connect(listener.local_addr().unwrap()).unwrap();
        channel.send(b"what to do").unwrap();
        assert_eq!(channel.recv().unwrap(), b"ok");
        let peer = channel.connect(&sender.qp, &[sender.mr.remote()]).unwrap();
        let bytes = bytes_of(3);
        sender.mr.write_at(0, &bytes);
        sender.qp.write(1, &sender.mr, 0..BYTES, peer.regions[0]).unwrap();
        assert_eq!(completion(&sender.cq).status, WcStatus::Success);
        channel.barrier().unwrap();
        for member in members {
            let (end, _) = member.join().unwrap();
            assert!(end.mr.to_vec(0, BYTES) == bytes);
        }
        assert!(channel.recv().is_err(), "members that disagree are nobody's peer");
        let error = relayed.join().unwrap().expect_err("they disagreed").to_string();
        assert!(error.contains("differently"), "{error}");
    });
}
