//! Reliable messages to all members of a group, over real sockets that lose packets.

mod common;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::multicast::{GroupSwitch, SwitchOptions};
use bowline::{
    Channel, Connector, Device, Error, Failure, Fault, LinkProfile, Listener, Mr, ReliableConfig,
    ReliableEvent, ReliableQp, SdrConfig, SealRole, WriteOptions,
};
use common::{ALL, pattern, random_addr};

/// A busy machine may take its time.
const PATIENCE: Duration = Duration::from_secs(60);
const MAX: usize = 1 << 20;
/// How long a member may be silent in the tests in which one dies.
const SHORT: Duration = Duration::from_secs(4);

fn config(timeout: Duration) -> ReliableConfig {
    ReliableConfig {
        sdr: SdrConfig { chunk_bytes: 16 << 10, ..SdrConfig::default() },
        max_write: MAX as u64,
        k: 8,
        m: 4,
        timeout_ns: timeout.as_nanos() as u64,
        ..ReliableConfig::default()
    }
}

struct End {
    qp: ReliableQp,
    mr: Mr,
    addr: IpAddr,
    /// Stays open, as programs keep it.
    _channel: Option<Channel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Port,
    Switch,
}

struct Group {
    sender: End,
    members: Vec<End>,
    channels: Vec<Channel>,
    _switch: Option<Arc<GroupSwitch>>,
}

fn end(link: Option<LinkProfile>, make: impl FnOnce(&bowline::Pd) -> ReliableQp) -> End {
    let addr = random_addr();
    let builder = Device::builder(addr);
    let device = link.into_iter().fold(builder, |builder, link| builder.link(link)).open().unwrap();
    let pd = device.alloc_pd().unwrap();
    End { qp: make(&pd), mr: pd.register(MAX, ALL).unwrap(), addr, _channel: None }
}

/// The replicator's link loses packets, independently for each copy.
fn group(at: Where, count: usize, link: Option<&str>, timeout: Duration) -> Group {
    let link: Option<LinkProfile> = link.map(|text| text.parse().unwrap());
    let sender_link = link.clone().filter(|_| at == Where::Port);
    let sender = end(sender_link, |pd| ReliableQp::for_group(pd, &config(timeout), count).unwrap());
    let (mut channels, mut members) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        channels.push(Connector::new().connect(listener.local_addr().unwrap()).unwrap());
        members.push(std::thread::spawn(move || {
            let end = end(None, |pd| ReliableQp::new(pd, &config(timeout)).unwrap());
            let mut channel = listener.accept_timeout(PATIENCE).unwrap();
            end.qp.connect_over(&mut channel).unwrap();
            End { _channel: Some(channel), ..end }
        }));
    }
    let switch = (at == Where::Switch).then(|| {
        let options = SwitchOptions { link, ..SwitchOptions::new(random_addr()) };
        Arc::new(GroupSwitch::open(&options).unwrap())
    });
    match &switch {
        Some(switch) => sender.qp.connect_group_via(switch, &mut channels).unwrap(),
        None => sender.qp.connect_group_over(&mut channels).unwrap(),
    }
    let members = members.into_iter().map(|member| member.join().unwrap()).collect();
    Group { sender, members, channels, _switch: switch }
}

impl Group {
    fn scheme(&self, name: &str) -> WriteOptions {
        WriteOptions { scheme: self.sender.qp.scheme(name).unwrap(), imm: Some(7) }
    }

    /// Writes so many bytes to these members, and compares what has come.
    fn write(&self, scheme: &str, len: usize, members: &[usize]) {
        let bytes: Vec<u8> = pattern(len).iter().map(|byte| byte ^ len as u8).collect();
        self.sender.mr.write_at(0, &bytes);
        for member in members {
            let End { qp, mr, .. } = &self.members[*member];
            mr.write_at(0, &vec![0xee; MAX]);
            qp.recv(mr, 0..MAX).unwrap();
        }
        self.sender.qp.write(&self.sender.mr, 0..len, self.scheme(scheme)).unwrap();
        let event = self.sender.qp.next(PATIENCE).unwrap();
        assert!(matches!(event, ReliableEvent::Written { .. }), "{event:?}");
        for member in members {
            let End { qp, mr, .. } = &self.members[*member];
            match qp.next(PATIENCE).unwrap() {
                ReliableEvent::Received { len: got, imm, .. } => {
                    assert_eq!((got, imm), (len as u64, Some(7)));
                }
                other => panic!("{other:?}"),
            }
            assert!(mr.to_vec(0, len) == bytes, "{scheme}: member {member}");
            assert!(mr.to_vec(len, MAX - len).iter().all(|byte| *byte == 0xee), "{scheme}");
        }
    }

    /// Writes something that fails because of a member, soon enough, and names it.
    fn fail(&self, scheme: &str, member: usize) -> Failure {
        let started = Instant::now();
        self.sender.qp.write(&self.sender.mr, 0..MAX, self.scheme(scheme)).unwrap();
        let error = self.sender.qp.next(PATIENCE).unwrap_err();
        // Far less than a minute, which an engine without this timeout would take here.
        assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
        let text = error.to_string();
        let Error::Member { addr, failure } = error else { panic!("{text}") };
        assert_eq!((addr, failure.member()), (self.members[member].addr, Some(member)), "{text}");
        assert!(text.contains(&addr.to_string()) && text.contains(&format!("member {member}")));
        failure
    }
}

#[test]
fn messages_reach_every_member_whatever_each_loses() {
    for (at, count) in [
        (Where::Port, 1),
        (Where::Port, 2),
        (Where::Port, 3),
        (Where::Switch, 1),
        (Where::Switch, 3),
    ] {
        let group = group(at, count, Some("loss=2%,seed=11"), PATIENCE);
        let all: Vec<usize> = (0..count).collect();
        assert_eq!(group.sender.qp.members().len(), count);
        for scheme in ["sr-nack", "ec-mds", "sr-rto", "ec-xor", "auto"] {
            for len in [1, 70_001, MAX] {
                group.write(scheme, len, &all);
            }
        }
        let stats = group.sender.qp.stats().unwrap();
        assert!(stats.chunks_resent > 0, "{at:?} {count}: {stats:?}");
        let recovered = |end: &End| end.qp.stats().unwrap().chunks_recovered;
        assert!(group.members.iter().map(recovered).sum::<u64>() > 0, "{at:?} {count}");
    }
}

#[test]
fn many_messages_are_under_way_together() {
    let group = group(Where::Port, 2, Some("loss=1%,seed=5"), PATIENCE);
    let (len, count) = (MAX / 16, 16);
    let bytes = pattern(MAX);
    group.sender.mr.write_at(0, &bytes);
    for member in &group.members {
        for slot in 0..count {
            member.qp.recv(&member.mr, slot * len..(slot + 1) * len).unwrap();
        }
    }
    for slot in 0..count {
        let part = slot * len..(slot + 1) * len;
        group.sender.qp.write(&group.sender.mr, part, group.scheme("ec-mds")).unwrap();
    }
    for end in [&group.sender].into_iter().chain(&group.members) {
        for _ in 0..count {
            end.qp.next(PATIENCE).unwrap();
        }
    }
    assert!(group.members.iter().all(|member| member.mr.to_vec(0, MAX) == bytes));
}

#[test]
fn a_dead_member_is_named_and_the_others_go_on() {
    for (at, scheme) in [(Where::Port, "sr-nack"), (Where::Switch, "ec-mds")] {
        let mut group = group(at, 3, None, SHORT);
        group.write(scheme, MAX, &[0, 1, 2]);
        // All have posted a receive, so that the message is under way, when the first member dies.
        for member in &group.members {
            member.qp.recv(&member.mr, 0..MAX).unwrap();
        }
        let dead = std::mem::replace(
            &mut group.members[0],
            end(None, |pd| ReliableQp::new(pd, &config(SHORT)).unwrap()),
        );
        group.members[0].addr = dead.addr;
        drop(dead);
        assert_eq!(group.fail(scheme, 0), Failure::MemberTimedOut(0));
        // The next one fails as well, before it has begun: no receive is posted for it.
        assert_eq!(group.fail(scheme, 0), Failure::MemberTimedOut(0));
        for member in &group.members[1..] {
            // The first message may be whole there; the second was never posted for.
            let event = member.qp.wait(PATIENCE).unwrap();
            assert!(matches!(event, Some(ReliableEvent::Received { .. })), "{event:?}");
            // In the place of the message that failed before it began.
            member.qp.recv(&member.mr, 0..MAX).unwrap();
            let event = member.qp.wait(PATIENCE).unwrap();
            let aborted = Err(Failure::Aborted);
            assert!(
                matches!(event, Some(ReliableEvent::Received { result, .. }) if result == aborted),
                "{event:?}"
            );
        }
        group.sender.qp.evict(0).unwrap();
        let left: Vec<usize> =
            group.sender.qp.members().iter().map(|(member, _)| *member).collect();
        assert_eq!(left, [1, 2]);
        group.write(scheme, MAX, &[1, 2]);
        assert!(group.sender.qp.evict(0).is_err(), "it is gone");
        group.sender.qp.evict(2).unwrap();
        group.write(scheme, MAX / 2, &[1]);
        let error = group.sender.qp.evict(1).unwrap_err().to_string();
        assert!(error.contains("the last one"), "{error}");
    }
}

#[test]
fn a_member_without_a_receive_is_waited_for() {
    let group = group(Where::Port, 2, None, SHORT);
    group.sender.mr.write_at(0, &pattern(MAX));
    group.members[0].qp.recv(&group.members[0].mr, 0..MAX).unwrap();
    group.sender.qp.write(&group.sender.mr, 0..MAX, group.scheme("ec-mds")).unwrap();
    let event = group.sender.qp.wait(SHORT * 2).unwrap();
    assert_eq!(event, None, "the second member lives, and is busy");
    group.members[1].qp.recv(&group.members[1].mr, 0..MAX).unwrap();
    group.sender.qp.next(PATIENCE).unwrap();
    assert!(group.members.iter().all(|member| member.mr.to_vec(0, MAX) == pattern(MAX)));
}

#[test]
fn a_member_that_gives_up_is_named() {
    let group = group(Where::Port, 2, None, PATIENCE);
    for (member, len) in group.members.iter().zip([MAX, MAX / 2]) {
        member.qp.recv(&member.mr, 0..len).unwrap();
    }
    assert_eq!(group.fail("sr-nack", 1), Failure::MemberGaveUp(1));
    let error = group.members[1].qp.next(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Message(Failure::TooLong)), "{error}");
}

#[test]
fn what_cannot_be_a_group_says_why() {
    let mut group = group(Where::Port, 1, None, PATIENCE);
    let error = group.sender.qp.connect_group_over(&mut []).unwrap_err();
    assert!(error.to_string().contains("0 channels to a group of 1"), "{error}");
    let error = group.sender.qp.recv(&group.sender.mr, 0..8).unwrap_err();
    assert!(error.to_string().contains("only members receive"), "{error}");
    let error = group.sender.qp.connect_over(&mut group.channels[0]).unwrap_err();
    assert!(error.to_string().contains("connect_group_over"), "{error}");
    assert_eq!(error.fault(), Fault::Caller);
    let pd = Device::open(&random_addr().to_string()).unwrap().alloc_pd().unwrap();
    assert!(ReliableQp::for_group(&pd, &config(PATIENCE), 0).is_err());
    assert!(ReliableQp::for_group(&pd, &config(PATIENCE), 65).is_err());
    // A channel that seals would give each member another key.
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let mut channel = Connector::new().connect(to).unwrap();
        channel.seal(&[3; 32], SealRole::Initiator).map(|()| channel).unwrap()
    });
    let mut channel = listener.accept_timeout(PATIENCE).unwrap();
    channel.seal(&[3; 32], SealRole::Responder).unwrap();
    let sealed = ReliableQp::for_group(&pd, &config(PATIENCE), 1).unwrap();
    let error = sealed.connect_group_over(&mut [channel]).unwrap_err();
    assert!(error.to_string().contains("cannot be sealed"), "{error}");
    drop(peer.join().unwrap());
}
