//! Groups that plain IP multicast carries, over real sockets, with a comparison of all bytes.

use std::net::IpAddr;
use std::time::Duration;

use bowline::multicast::{Group, GroupOptions, Multicast};
use bowline::{Channel, ConnectOptions, Connector, Cq, Device, Error, Listener, QpType, WcStatus};

mod common;

use common::End;

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 256 << 10;
const ROUNDS: u64 = 8;

fn end(addr: &str) -> End {
    End::on(&Device::open(addr).expect("the address is free"), QpType::Rc)
}

fn bytes_of(round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i.wrapping_mul(round * 2 + 1) >> 3) as u8).collect()
}

fn done(cq: &Cq) {
    assert_eq!(cq.next(PATIENCE).expect("in time").status, WcStatus::Success);
}

/// Members that connect as to any queue pair, each in a thread of its own. Those with equal hosts
/// share an address.
struct Members {
    channels: Vec<Channel>,
    threads: Vec<std::thread::JoinHandle<Result<End, Error>>>,
}

impl Members {
    fn start(net: u8, hosts: &[u8]) -> Members {
        let (mut channels, mut threads) = (Vec::new(), Vec::new());
        for host in hosts {
            let addr = format!("127.{net}.0.{host}");
            let listener = Listener::bind((&*addr, 0)).unwrap();
            channels.push(Connector::new().connect(listener.local_addr().unwrap()).unwrap());
            threads.push(std::thread::spawn(move || {
                let end = end(&addr);
                listener.accept()?.connect(&end.qp, &[end.mr.remote()])?;
                Ok(end)
            }));
        }
        Members { channels, threads }
    }

    fn connect(&mut self, sender: &End, multicast: Multicast) -> Result<Group, Error> {
        let connection = ConnectOptions { timeout: 17, ..ConnectOptions::default() };
        let options = GroupOptions { multicast, connection, ..GroupOptions::default() };
        Group::connect(&sender.qp, &[], &mut self.channels, &options)
    }

    fn ends(self) -> Vec<End> {
        let ends = self.threads.into_iter().map(|thread| thread.join().unwrap().unwrap());
        ends.collect()
    }
}

fn exchange(group: &Group, sender: &End, members: &[End]) {
    for round in 0..ROUNDS {
        let bytes = bytes_of(round);
        sender.mr.write_at(0, &bytes);
        sender.qp.write(round, &sender.mr, 0..BYTES, group.regions()[0]).unwrap();
        done(&sender.cq);
        assert!(members.iter().all(|member| member.mr.to_vec(0, BYTES) == bytes));
        let bytes = bytes_of(round + 100);
        sender.mr.write_at(0, &bytes);
        for member in members {
            member.qp.recv(round, &member.mr, 0..BYTES).unwrap();
        }
        sender.qp.send(round, &sender.mr, 0..BYTES).unwrap();
        done(&sender.cq);
        for member in members {
            done(&member.cq);
            assert!(member.mr.to_vec(0, BYTES) == bytes);
        }
    }
}

/// Bytes that the sender's port has sent for each byte of the messages.
fn copies(sender: &End) -> f64 {
    let sent = sender.device.port_counters().unwrap().tx_bytes;
    sent as f64 / (2 * ROUNDS * BYTES as u64) as f64
}

/// Whether a socket of this network namespace receives a group.
fn is_received(group: IpAddr) -> bool {
    let IpAddr::V4(group) = group else { panic!("{group}") };
    let hex = format!("{:08X}:", u32::from_ne_bytes(group.octets()));
    std::fs::read_to_string("/proc/net/udp").unwrap().contains(&hex)
}

#[test]
fn every_member_gets_what_is_sent_once() {
    for (net, hosts) in [(141, &[2, 3][..]), (142, &[2, 3, 3])] {
        let (sender, mut members) = (end(&format!("127.{net}.0.1")), Members::start(net, hosts));
        let group = members.connect(&sender, Multicast::Always).unwrap();
        let members = members.ends();
        exchange(&group, &sender, &members);
        assert!(copies(&sender) < 1.3, "{} copies", copies(&sender));
        let address = group.multicast().expect("it works on loopback");
        assert!(is_received(address));
        drop((group, members));
        assert!(!is_received(address), "members leave with their queue pairs");
    }
}

#[test]
fn only_those_who_lack_a_packet_get_it_again() {
    for (net, hosts) in [(143, &[2, 3][..]), (144, &[2, 3, 4])] {
        let (sender, mut members) = (end(&format!("127.{net}.0.1")), Members::start(net, hosts));
        let group = members.connect(&sender, Multicast::Always).unwrap();
        let members = members.ends();
        members[1].device.fault(&"loss=1%,seed=3".parse().unwrap());
        exchange(&group, &sender, &members);
        let resent = sender.device.counters().unwrap().retransmitted_packets;
        let (spared, lossy) = (&members[0].device, &members[1].device);
        let again = spared.counters().unwrap().duplicates;
        // The sender may go back before it has heard how much the other member has.
        assert!(again < resent, "{again} of {resent} reached a member that lost nothing");
        assert!(lossy.port_counters().unwrap().fault_dropped_in > 0);
    }
}

#[test]
fn a_group_whose_address_reaches_nobody_is_copied_by_the_port() {
    let (sender, mut members) = (end("127.145.0.1"), Members::start(145, &[2, 3]));
    sender.device.fault(&"blackhole=out for 600ms".parse().unwrap());
    let group = members.connect(&sender, Multicast::IfItWorks).unwrap();
    assert_eq!(group.multicast(), None);
    let members = members.ends();
    exchange(&group, &sender, &members);
    assert!(copies(&sender) > 1.9, "{} copies", copies(&sender));
}

#[test]
fn a_group_that_needs_multicast_says_why_it_has_none() {
    let (sender, mut members) = (end("127.146.0.1"), Members::start(146, &[2, 3]));
    sender.device.fault(&"blackhole=out for 600ms".parse().unwrap());
    let error = members.connect(&sender, Multicast::Always).map(|_| ()).expect_err("no probe");
    let text = error.to_string();
    assert!(text.contains("127.146.0.2: packets to the group do not arrive"), "{text}");

    let (sender, mut members) = (end("127.147.0.1"), Members::start(147, &[2]));
    let error = members.connect(&sender, Multicast::Always).map(|_| ()).expect_err("one member");
    assert!(error.to_string().contains("2 to 63 members"), "{error}");
}
