//! Switches that are members of other switches, set up through `GroupSwitch::relay`.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bowline::multicast::{Cause, Event, GroupOptions, GroupSwitch, Policy, SwitchOptions};
use bowline::{
    Channel, ConnectOptions, Connector, Device, Error, Listener, Peer, QpType, WcStatus,
};

mod common;

use common::End;

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 256 << 10;

fn end(addr: &str) -> End {
    End::on(&Device::open(addr).expect("the address is free"), QpType::Rc)
}

/// A switch that serves one sender.
struct Level {
    switch: Arc<GroupSwitch>,
    at: SocketAddr,
    /// The sender's set-up connection, to cut it.
    sender: mpsc::Receiver<TcpStream>,
    served: JoinHandle<Result<(), Error>>,
}

fn level(addr: [u8; 4], members: Vec<SocketAddr>, link: Option<&str>, policy: Policy) -> Level {
    let addr = IpAddr::from(addr);
    let link = link.map(|text| text.parse().expect("a right profile"));
    let switch = GroupSwitch::open(&SwitchOptions { link, ..SwitchOptions::new(addr) }).unwrap();
    let switch = Arc::new(switch);
    let listener = TcpListener::bind((addr, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (accepted, sender) = mpsc::channel();
    let here = Arc::clone(&switch);
    let served = std::thread::spawn(move || {
        let (sender, _) = listener.accept().unwrap();
        accepted.send(sender.try_clone().unwrap()).unwrap();
        let members = members.iter().map(|addr| TcpStream::connect(addr).unwrap()).collect();
        here.relay(&sender, members, &GroupOptions { policy, ..GroupOptions::default() })
    });
    Level { switch, at, sender, served }
}

/// A member's queue pair, once it is connected.
type Joined = JoinHandle<Result<(End, Channel), Error>>;

/// A member that connects one queue pair, and then gives it to the test.
fn member(addr: String) -> (SocketAddr, Joined) {
    let listener = Listener::bind((&*addr, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let connected = std::thread::spawn(move || {
        let end = end(&addr);
        let mut channel = listener.accept()?;
        channel.connect(&end.qp, &[end.mr.remote()])?;
        Ok((end, channel))
    });
    (at, connected)
}

/// `outer` has the switch `inner` and member 2 behind it, and `inner` members 0 and 1.
struct Tree {
    inner: Level,
    outer: Level,
    sender: End,
    peer: Peer,
    members: Vec<(End, Channel)>,
    _channel: Channel,
}

/// Links impair what a switch sends: the outer one's are lost between the switches too.
fn tree(net: u8, links: [Option<&str>; 2], at_inner: Policy) -> Tree {
    let (at, members): (Vec<_>, Vec<_>) =
        (2..5).map(|host| member(format!("127.{net}.0.{host}"))).unzip();
    let inner = level([127, net, 0, 100], at[..2].to_vec(), links[0], at_inner);
    let outer = level([127, net, 0, 101], vec![inner.at, at[2]], links[1], Policy::Fail);
    let sender = end(&format!("127.{net}.0.1"));
    let mut channel = Connector::new().connect(outer.at).unwrap();
    let peer = channel.exchange(&sender.qp, &[]).expect("the switches offer one queue pair");
    // 134 ms and seven retries: an eviction takes 200 ms.
    let patient = ConnectOptions { timeout: 15, ..ConnectOptions::default() };
    sender.qp.connect_with(&peer.endpoint, &patient).unwrap();
    channel.barrier().unwrap();
    let members = members.into_iter().map(|m| m.join().unwrap().unwrap()).collect();
    Tree { inner, outer, sender, peer, members, _channel: channel }
}

fn bytes_of(round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i.wrapping_mul(round * 2 + 1) >> 3) as u8).collect()
}

impl Tree {
    /// Writes all of the members' memory.
    fn write(&self, round: u64) -> WcStatus {
        self.sender.mr.write_at(0, &bytes_of(round));
        self.sender.qp.write(round, &self.sender.mr, 0..BYTES, self.peer.regions[0]).unwrap();
        match self.sender.cq.next(PATIENCE) {
            Ok(completion) => completion.status,
            Err(Error::Completion(failed)) => failed.status,
            Err(error) => panic!("{error}"),
        }
    }

    fn has(&self, member: usize, round: u64) -> bool {
        self.members[member].0.mr.to_vec(0, BYTES) == bytes_of(round)
    }
}

#[test]
fn a_switch_is_a_member_of_another() {
    let tree = tree(201, [None, None], Policy::Fail);
    for round in 0..10 {
        assert_eq!(tree.write(round), WcStatus::Success);
        assert!((0..3).all(|member| tree.has(member, round)), "round {round}");
    }
    for (end, _) in &tree.members {
        end.qp.recv(1, &end.mr, 0..BYTES).unwrap();
    }
    tree.sender.mr.write_at(0, &bytes_of(11));
    tree.sender.qp.send(11, &tree.sender.mr, 0..BYTES).unwrap();
    assert_eq!(tree.sender.cq.next(PATIENCE).unwrap().status, WcStatus::Success);
    for (end, _) in &tree.members {
        assert_eq!(end.cq.next(PATIENCE).unwrap().byte_len, BYTES as u32);
        assert!(end.mr.to_vec(0, BYTES) == bytes_of(11));
    }
    // The outer switch copies twice, and the inner one again.
    let packets = tree.outer.switch.counters().data_in;
    assert!(tree.outer.switch.counters().copies_out <= 2 * packets + 100);
    assert_eq!(tree.inner.switch.groups()[0].key.sender, IpAddr::from([127, 201, 0, 101]));
    drop(tree._channel);
    assert!(tree.outer.served.join().unwrap().is_ok());
    assert!(tree.inner.served.join().unwrap().is_ok());
    assert!(tree.inner.switch.groups().is_empty(), "its sender is gone");
}

#[test]
fn packets_lost_between_switches_are_sent_again() {
    let tree = tree(202, [Some("loss=1%,seed=3"), Some("loss=1%,seed=4")], Policy::Fail);
    for round in 0..20 {
        assert_eq!(tree.write(round), WcStatus::Success);
        assert!((0..3).all(|member| tree.has(member, round)), "round {round}");
    }
    assert!(tree.outer.switch.counters().naks_in > 0, "nothing was lost");
}

#[test]
fn what_an_inner_switch_cannot_deliver_is_not_acknowledged() {
    let tree = tree(203, [None, None], Policy::Fail);
    assert_eq!(tree.write(1), WcStatus::Success);
    // The inner switch forgets the group, as if its process were gone.
    let inner = tree.inner.sender.recv().unwrap();
    inner.shutdown(std::net::Shutdown::Both).unwrap();
    while !tree.inner.switch.groups().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begun = Instant::now();
    assert_eq!(tree.write(2), WcStatus::RetryExcErr);
    // 134 ms, at most doubled, and seven retries.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(tree.members[2].0.mr.to_vec(0, BYTES) == bytes_of(2), "the other branch has it");
}

#[test]
fn an_inner_switch_evicts_its_member_and_the_sender_goes_on() {
    let evict = Policy::Evict { after_ns: 200_000_000, least: 1 };
    let mut tree = tree(204, [None, None], evict);
    assert_eq!(tree.write(1), WcStatus::Success);
    drop(tree.members.remove(0));
    for round in 2..5 {
        assert_eq!(tree.write(round), WcStatus::Success);
        assert!((0..2).all(|member| tree.has(member, round)), "round {round}");
    }
    let event = tree.inner.switch.poll_event().expect("it says who left");
    assert!(matches!(event, Event::Evicted { cause: Cause::Behind, .. }), "{event:?}");
    assert_eq!(tree.outer.switch.poll_event(), None);
}

#[test]
fn a_member_that_leaves_before_the_group_exists_is_not_skipped() {
    let (at, connected) = member("127.205.0.2".to_owned());
    // Another one accepts, and hangs up.
    let gone = TcpListener::bind("127.205.0.3:0").unwrap();
    let gone_at = gone.local_addr().unwrap();
    let outer = level([127, 205, 0, 101], vec![at, gone_at], None, Policy::Fail);
    let sender = end("127.205.0.1");
    let mut channel = Connector::new().connect(outer.at).unwrap();
    drop(gone.accept().unwrap());
    assert!(channel.connect(&sender.qp, &[]).is_err(), "a group of one is not what was asked for");
    let error = outer.served.join().unwrap().expect_err("one is missing").to_string();
    assert!(error.contains("1 of them hung up"), "{error}");
    assert!(connected.join().unwrap().is_err());
    assert!(outer.switch.groups().is_empty());
}
