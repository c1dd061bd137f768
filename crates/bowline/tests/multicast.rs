//! A switch in a process of its own kind: real sockets, and bytes that are compared.

use std::net::IpAddr;
use std::time::Duration;

use bowline::multicast::{
    Cause, Connected, Event, GroupMember, GroupOptions, GroupSwitch, Policy, SwitchOptions,
};
use bowline::{
    Access, Completion, ConnectOptions, Cq, Device, Endpoint, Error, Mr, PostError, Qp, QpType,
    WcStatus,
};

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 256 << 10;

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

fn end(addr: &str) -> End {
    let device = Device::open(addr).expect("the address is free");
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.register(BYTES, access).unwrap();
    let qp = pd.qp(QpType::Rc, &cq).build().unwrap();
    End { qp, cq, mr }
}

struct Group {
    switch: GroupSwitch,
    sender: End,
    members: Vec<End>,
    connected: Connected,
}

/// A group in 127.`net`.0.0/16. Members 0 and 1 share an address if there are three.
fn group(net: u8, count: usize, link: Option<&str>, policy: Policy) -> Group {
    let addr: IpAddr = [127, net, 0, 100].into();
    let link = link.map(|text| text.parse().expect("a right profile"));
    let switch = GroupSwitch::open(&SwitchOptions { link, ..SwitchOptions::new(addr) }).unwrap();
    let sender = end(&format!("127.{net}.0.1"));
    let host = |member: usize| if count == 3 { member.max(1) } else { member };
    let members: Vec<End> =
        (0..count).map(|member| end(&format!("127.{net}.0.{}", 2 + host(member)))).collect();
    let offers: Vec<GroupMember> = members
        .iter()
        .map(|m| GroupMember { endpoint: m.qp.endpoint(), regions: vec![m.mr.remote()] })
        .collect();
    let options = GroupOptions { policy, ..GroupOptions::default() };
    let connected = switch.connect(&sender.qp.endpoint(), &offers, &options).unwrap();
    for (member, endpoint) in members.iter().zip(&connected.for_members) {
        member.qp.connect(endpoint).unwrap();
    }
    // 67 ms and seven retries, unless nobody is to die: then a busy machine may take its time.
    let timeout = if policy == Policy::Fail && count != 2 { 17 } else { 14 };
    let patient = ConnectOptions { timeout, ..ConnectOptions::default() };
    sender.qp.connect_with(&connected.for_sender, &patient).unwrap();
    Group { switch, sender, members, connected }
}

fn bytes_of(round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i.wrapping_mul(round * 2 + 1) >> 3) as u8).collect()
}

fn completion(cq: &Cq) -> Completion {
    cq.next(PATIENCE).expect("in time")
}

impl Group {
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
    for (net, members) in [(91, 1), (92, 2), (93, 3), (94, 7)] {
        let group = group(net, members, None, Policy::Fail);
        let all: Vec<usize> = (0..members).collect();
        for round in 0..4 {
            group.write(round, &all);
            group.send(round + 100);
        }
        let counters = group.switch.counters();
        assert!(counters.copies_out >= counters.data_in, "{counters:?}");
        assert_eq!(counters.drop_icrc + counters.drop_source, 0, "{counters:?}");
    }
}

#[test]
fn losses_on_the_branches_are_repaired() {
    let group = group(95, 3, Some("loss=1%,seed=5"), Policy::Fail);
    for round in 0..8 {
        group.write(round, &[0, 1, 2]);
        group.send(round + 100);
    }
    let counters = group.switch.counters();
    assert!(counters.naks_in > 0 && counters.filtered > 0, "{counters:?}");
}

#[test]
fn reads_are_refused_before_they_are_sent() {
    let group = group(96, 2, None, Policy::Fail);
    let region = group.connected.regions[0];
    let refused = group.sender.qp.read(2, &group.sender.mr, 0..64, region);
    assert!(matches!(refused, Err(Error::Post(PostError::NoReads))), "{refused:?}");
    group.write(1, &[0, 1]);
}

#[test]
fn a_dead_member_is_evicted_and_named() {
    let policy = Policy::Evict { after_ns: 150_000_000, least: 1 };
    let group = group(97, 3, None, policy);
    group.write(1, &[0, 1, 2]);
    group.members[2].qp.close().unwrap();
    group.write(2, &[0, 1]);
    let evicted = group.switch.poll_event();
    let Some(Event::Evicted { member, cause: Cause::Behind, .. }) = evicted else {
        panic!("{evicted:?}");
    };
    assert_eq!(member, group.connected.ids[2]);
    group.write(3, &[0, 1]);
}

#[test]
fn without_eviction_a_dead_member_fails_the_group() {
    let group = group(98, 2, None, Policy::Fail);
    group.write(1, &[0, 1]);
    group.members[1].qp.close().unwrap();
    let region = group.connected.regions[0];
    group.sender.qp.write(2, &group.sender.mr, 0..BYTES, region).unwrap();
    match group.sender.cq.next(PATIENCE) {
        Err(Error::Completion(error)) => assert_eq!(error.status, WcStatus::RetryExcErr),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_a_group_says_why() {
    let group = group(99, 1, None, Policy::Fail);
    let (sender, options) = (group.sender.qp.endpoint(), GroupOptions::default());
    let offer = GroupMember { endpoint: group.members[0].qp.endpoint(), regions: vec![] };
    let connect = |sender: Endpoint, members: &[GroupMember]| {
        let refused = group.switch.connect(&sender, members, &options);
        refused.expect_err("it cannot be").to_string()
    };
    assert!(connect(sender, &[]).contains("at least one member"));
    let datagrams = Endpoint { qp_type: QpType::Ud, ..sender };
    assert!(connect(datagrams, std::slice::from_ref(&offer)).contains("use RC"));
    let elsewhere = Endpoint { udp_port: 4000, ..sender };
    assert!(connect(elsewhere, std::slice::from_ref(&offer)).contains("UDP port 4000"));
    let more = GroupMember { regions: group.connected.regions.clone(), ..offer.clone() };
    assert!(connect(sender, &[offer.clone(), more]).contains("member 1 offers 1 regions"));
    let many = vec![offer; 65];
    assert!(connect(sender, &many).contains("1 to 64"));
}
