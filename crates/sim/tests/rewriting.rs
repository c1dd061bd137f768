//! Switches that rewrite, replicate, merge and hold packets, written against the public API alone.

#[allow(dead_code, reason = "each test program uses its part")]
mod rig;

use std::net::IpAddr;

use bowline_nic::Time;
use bowline_sim::Packet;
use bowline_sim::net::{Frame, PortId, Ports, Switch, Topology, star};
use bowline_wire::Qpn;
use rig::{CABLE, Rig};

/// An address that no host has.
const VIRTUAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 9, 9));
const VIRTUAL_QPN: u32 = 0x77_1234;
const BYTES: usize = 10_000;

/// Bytes of a BTH and of what may follow it.
const QPN: std::ops::Range<usize> = 5..8;
const PSN: std::ops::Range<usize> = 9..12;
const RETH_KEY: std::ops::Range<usize> = 20..24;
const RC_WRITE_FIRST: u8 = 0x06;
const RC_WRITE_ONLY: u8 = 0x0a;
const RC_ACKNOWLEDGE: u8 = 0x11;

/// A member behind the virtual address.
#[derive(Clone, Copy)]
struct Member {
    addr: IpAddr,
    qpn: Qpn,
    rkey: u32,
}

/// Rewrites a packet to go from the virtual address to a member.
fn readdress(packet: &mut Packet, to: &Member) {
    (packet.src, packet.dst) = (VIRTUAL, to.addr);
    packet.bytes[QPN].copy_from_slice(&to.qpn.get().to_be_bytes()[1..]);
    if [RC_WRITE_FIRST, RC_WRITE_ONLY].contains(&packet.bytes[0]) {
        packet.bytes[RETH_KEY].copy_from_slice(&to.rkey.to_be_bytes());
    }
    packet.set_icrc();
}

fn send_to(addr: IpAddr, frame: Frame, ports: &mut Ports<'_>) {
    match ports.routes_to(addr).first().copied() {
        Some(port) => ports.send(port, frame),
        None => ports.discard(frame),
    }
}

/// Two members that each believe that they talk to the virtual address.
struct Rewriter {
    members: [Member; 2],
}

impl Switch for Rewriter {
    fn handle_frame(&mut self, _now: Time, _port: PortId, frame: Frame, ports: &mut Ports<'_>) {
        let packet = ports.packet_mut(&frame);
        assert_eq!((packet.dst, &packet.bytes[QPN]), (VIRTUAL, &[0x77, 0x12, 0x34][..]));
        let to = self.members[usize::from(packet.src == self.members[0].addr)];
        readdress(packet, &to);
        send_to(to.addr, frame, ports);
    }
}

fn fill(rig: &Rig, end: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 256) as u8).collect();
    rig.app.ends[end].buffer.write_at(0, &bytes);
    bytes
}

fn memory(rig: &Rig, end: usize) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    rig.app.ends[end].buffer.read_at(0, &mut bytes);
    bytes
}

/// A star whose hosts have an end each, connected to the virtual address, and all of them as
/// members.
fn star_of(hosts: usize) -> (Rig, Vec<Member>) {
    let addrs = Topology::ipv4(hosts);
    let mut rig = Rig::new(star(1, &addrs, CABLE), &addrs);
    for host in 0..hosts {
        let end = rig.end(host, BYTES);
        rig.connect(end, VIRTUAL, Qpn::new(VIRTUAL_QPN));
    }
    let member =
        |(end, addr): (&rig::End, &IpAddr)| Member { addr: *addr, qpn: end.qpn, rkey: end.key.0 };
    let members = rig.app.ends.iter().zip(&addrs).map(member).collect();
    (rig, members)
}

fn set_switch(rig: &mut Rig, switch: impl Switch + 'static) {
    let network = rig.world.network_mut();
    let node = network.switches()[0];
    network.set_switch(node, Box::new(switch));
}

#[test]
fn a_write_lands_through_a_switch_that_rewrites_addresses_and_numbers() {
    let (mut rig, members) = star_of(2);
    set_switch(&mut rig, Rewriter { members: [members[0], members[1]] });
    let sent = fill(&rig, 0);
    rig.write(0, rig.app.ends[1].key, BYTES as u32, 5);
    rig.run();
    assert_eq!(memory(&rig, 1), sent);
    let counters = rig.world.nic(bowline_sim::NicId(0)).counters();
    assert_eq!(counters.retransmitted_packets, 0, "every packet and answer was right at once");
}

#[test]
fn a_switch_that_forgets_the_icrc_delivers_nothing() {
    struct Careless(Rewriter);
    impl Switch for Careless {
        fn handle_frame(&mut self, _: Time, _: PortId, frame: Frame, ports: &mut Ports<'_>) {
            let packet = ports.packet_mut(&frame);
            let to = self.0.members[usize::from(packet.src == self.0.members[0].addr)];
            readdress(packet, &to);
            let last = packet.bytes.len() - 1;
            packet.bytes[last] ^= 1;
            send_to(to.addr, frame, ports);
        }
    }
    let (mut rig, members) = star_of(2);
    set_switch(&mut rig, Careless(Rewriter { members: [members[0], members[1]] }));
    let sent = fill(&rig, 0);
    rig.write(0, rig.app.ends[1].key, BYTES as u32, 1);
    rig.world.run_until(&mut rig.app, Time::from_millis(20));
    assert_ne!(memory(&rig, 1), sent);
}

/// One sender's WRITEs go to all receivers, and their acknowledgements come back as one.
struct Multicast {
    sender: Member,
    receivers: Vec<Member>,
    /// Packets that each receiver has acknowledged, counted from the first PSN.
    acked: Vec<u32>,
    first_psn: Option<u32>,
    told: u32,
}

fn psn(packet: &Packet) -> u32 {
    let bytes = &packet.bytes[PSN];
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

impl Switch for Multicast {
    fn handle_frame(&mut self, _now: Time, _port: PortId, frame: Frame, ports: &mut Ports<'_>) {
        let (from, psn, opcode) = {
            let packet = ports.packet(&frame);
            (packet.src, psn(packet), packet.bytes[0])
        };
        if from == self.sender.addr {
            self.first_psn.get_or_insert(psn);
            for to in &self.receivers {
                let copy = ports.copy(&frame);
                readdress(ports.packet_mut(&copy), to);
                send_to(to.addr, copy, ports);
            }
            return ports.discard(frame);
        }
        assert_eq!(opcode, RC_ACKNOWLEDGE, "receivers only acknowledge");
        let who = self.receivers.iter().position(|r| r.addr == from).expect("a member");
        let first = self.first_psn.expect("nobody acknowledges what was not sent");
        self.acked[who] = (psn.wrapping_sub(first) & 0xff_ffff) + 1;
        let all = *self.acked.iter().min().expect("there are receivers");
        if all <= self.told {
            return ports.discard(frame);
        }
        self.told = all;
        let packet = ports.packet_mut(&frame);
        packet.bytes[PSN].copy_from_slice(&(first + all - 1).to_be_bytes()[1..]);
        readdress(packet, &self.sender);
        send_to(self.sender.addr, frame, ports);
    }
}

#[test]
fn a_write_lands_at_all_receivers_of_a_switch_that_replicates_and_merges() {
    let (mut rig, members) = star_of(4);
    let switch = Multicast {
        sender: members[0],
        receivers: members[1..].to_vec(),
        acked: vec![0; 3],
        first_psn: None,
        told: 0,
    };
    set_switch(&mut rig, switch);
    let sent = fill(&rig, 0);
    // Whatever key the sender names, each receiver gets its own.
    rig.write(0, rig.app.ends[0].key, BYTES as u32, 3);
    rig.run();
    for receiver in 1..4 {
        assert_eq!(memory(&rig, receiver), sent, "receiver {receiver}");
    }
}

/// Holds every frame for a while before it sends it on.
struct Hold {
    held: std::collections::VecDeque<(Time, Frame)>,
    hold_ns: u64,
}

impl Switch for Hold {
    fn handle_frame(&mut self, now: Time, _port: PortId, frame: Frame, _ports: &mut Ports<'_>) {
        self.held.push_back((now.plus_nanos(self.hold_ns), frame));
    }

    fn handle_timeout(&mut self, now: Time, ports: &mut Ports<'_>) {
        while let Some((at, _)) = self.held.front()
            && *at <= now
            && let Some((_, frame)) = self.held.pop_front()
        {
            let dst = ports.packet(&frame).dst;
            send_to(dst, frame, ports);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.held.front().map(|(at, _)| *at)
    }
}

fn time_through(hold_ns: u64) -> (Time, u64) {
    let addrs = Topology::ipv4(2);
    let mut rig = Rig::new(star(1, &addrs, CABLE), &addrs);
    set_switch(&mut rig, Hold { held: Default::default(), hold_ns });
    rig.pair(0, 1, 8, 1);
    rig.run();
    (rig.world.now(), rig.world.trace_hash())
}

#[test]
fn a_switch_that_holds_packets_is_called_at_its_time_and_runs_repeat() {
    let (quick, slow) = (time_through(1_000), time_through(51_000));
    // There and back.
    assert_eq!(slow.0.nanos_since(quick.0), 100_000);
    assert_eq!(slow, time_through(51_000));
}

#[test]
fn a_switch_whose_timeout_stays_due_is_a_violation() {
    struct Stuck;
    impl Switch for Stuck {
        fn handle_frame(&mut self, _: Time, _: PortId, frame: Frame, ports: &mut Ports<'_>) {
            ports.discard(frame);
        }
        fn poll_timeout(&self) -> Option<Time> {
            Some(Time::ZERO)
        }
    }
    let addrs = Topology::ipv4(2);
    let mut rig = Rig::new(star(1, &addrs, CABLE), &addrs);
    set_switch(&mut rig, Stuck);
    rig.pair(0, 1, 8, 1);
    rig.world.run_until(&mut rig.app, Time::from_millis(1));
    assert!(rig.world.violations()[0].what.contains("leaves its timeout due"));
}
