//! The port of a sender, over a simulated port.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bowline_io::{FrameSink, Onward, Port, PortCaps, PortCounters, PortError, PortFds, Round};
use bowline_multicast::{
    Branch, GroupKey, Leaf, MemberConfig, Origin, Place, Region, RootConfig, Switch, SwitchLimits,
    Table,
};
use bowline_nic::{FrameMeta, IpId, Time, TxBatch, TxCaps};
use bowline_wire::{
    Aeth, Bth, ExtHeaders, FlowKey, ICRC_LEN, Opcode, Packet, PacketView, Psn, Qpn, Reth, Syndrome,
    icrc_of,
};

use super::port::ReplicatingPort;
use super::{Copier, Outgoing, Replicator};

pub(super) const PORT: u16 = 4791;
const SENDER_QPN: Qpn = Qpn::new(0x07_0001);
pub(super) const GROUP: Qpn = Qpn::new(0xfe_0000);
const OTHER_GROUP: Qpn = Qpn::new(0xfe_0010);
const CAPS: TxCaps = TxCaps { max_segments: 64, max_burst_bytes: 65_000 };

pub(super) fn addr(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

pub(super) fn id(member: u32) -> Qpn {
    Qpn::new(0x07_0100 + member)
}

pub(super) fn flow(src: u8, dst: u8) -> FlowKey {
    FlowKey { src: addr(src), dst: addr(dst), src_port: PORT, dst_port: PORT }
}

pub(super) fn summed(flow: &FlowKey, ip_id: u16, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.wire_len().expect("a known opcode")];
    packet.emit(&mut bytes).expect("all headers are given");
    let body = bytes.len() - ICRC_LEN;
    let icrc = icrc_of(flow, ip_id, &bytes[..body]);
    bytes[body..].copy_from_slice(&icrc.to_le_bytes());
    bytes
}

/// A WRITE of 64 bytes at the start of the sender's region.
pub(super) fn write(flow: &FlowKey, qpn: Qpn, psn: u32, ip_id: u16) -> Vec<u8> {
    write_of(64, flow, qpn, psn, ip_id)
}

pub(super) fn write_of(len: u32, flow: &FlowKey, qpn: Qpn, psn: u32, ip_id: u16) -> Vec<u8> {
    let mut bth = Bth::new(Opcode::RC_WRITE_ONLY, qpn, Psn::new(psn));
    bth.ack_req = true;
    let ext = ExtHeaders { reth: Some(Reth { va: 0x1000, rkey: 7, len }), ..ExtHeaders::default() };
    let payload = &vec![psn as u8; len as usize];
    summed(flow, ip_id, &Packet { bth, ext, payload, pad_bytes: [0; 3], icrc: 0 })
}

pub(super) fn ack(flow: &FlowKey, qpn: Qpn, psn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_ACK, qpn, Psn::new(psn));
    let syndrome = Syndrome::Ack { credits: Syndrome::NO_CREDITS };
    let ext = ExtHeaders { aeth: Some(Aeth { syndrome, msn: 1 }), ..ExtHeaders::default() };
    summed(flow, 0, &Packet { bth, ext, payload: &[], pad_bytes: [0; 3], icrc: 0 })
}

/// The simulated network: bursts that were taken, how many more it takes, and datagrams that wait.
#[derive(Default)]
pub(super) struct Net {
    sent: Vec<(IpAddr, u16, Vec<u8>)>,
    pub(super) room: usize,
    arrivals: Vec<(FrameMeta, Vec<u8>, usize)>,
}

struct Played(Arc<Mutex<Net>>);

impl Port for Played {
    fn caps(&self) -> PortCaps {
        PortCaps {
            addr: addr(1),
            udp_port: PORT,
            ip_mtu: 1500,
            tx: CAPS,
            ecn: false,
            sees_ip_header: false,
            shares_memory: false,
            via: "test",
        }
    }

    fn send(&mut self, _: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        let mut net = self.0.lock().unwrap();
        let bursts = &batch.bursts()[from..];
        let taken = bursts.len().min(net.room);
        net.room -= taken;
        for burst in &bursts[..taken] {
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                net.sent.push((burst.dst, id as u16, batch.bytes(packet).to_vec()));
            }
        }
        Ok(taken)
    }

    fn recv(&mut self, _: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        let arrivals = std::mem::take(&mut self.0.lock().unwrap().arrivals);
        for (meta, bytes, frame_len) in &arrivals {
            sink.frames(meta, bytes, *frame_len);
        }
        Ok(arrivals.len())
    }

    fn fds(&self) -> PortFds {
        PortFds::default()
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

pub(super) struct Rig {
    pub(super) port: ReplicatingPort,
    pub(super) replicator: Arc<Replicator>,
    pub(super) net: Arc<Mutex<Net>>,
}

/// A sender at host 1, with members at hosts 2 and 3.
pub(super) fn rig() -> Rig {
    let replicator = Arc::new(Replicator::new());
    let net = Arc::new(Mutex::new(Net { room: usize::MAX, ..Net::default() }));
    let played = Box::new(Played(Arc::clone(&net)));
    let port = ReplicatingPort::new(played, Arc::clone(&replicator));
    Rig { port, replicator, net }
}

pub(super) fn table() -> Table {
    let members = 0..2_u32;
    let branch = |member: u32| Branch {
        dst: addr(2 + member as u8),
        src: None,
        leaf: Some(Leaf {
            qpn: Qpn::new(0x09_0000 + member),
            places: vec![Place { va: 0x2000 + u64::from(member), rkey: 100 + member }],
        }),
    };
    let config = |member: u32| MemberConfig {
        addr: addr(2 + member as u8),
        id: id(member),
        branch: member as usize,
    };
    let peer = Origin { addr: addr(2), port: PORT };
    let root = RootConfig {
        members: members.clone().map(config).collect(),
        in_port: true,
        ..RootConfig::new(SENDER_QPN, peer, addr(1), Some(Psn::new(0)))
    };
    Table {
        key: GroupKey { sender: addr(1), id: GROUP },
        epoch: 1,
        branches: members.map(branch).collect(),
        regions: vec![Region { va: 0x1000, len: 0x1000, rkey: 7 }],
        root: Some(root),
    }
}

/// The destinations of a batch's bursts, and their bytes.
fn bytes_of(batch: &TxBatch) -> Vec<(IpAddr, u8, Vec<u8>)> {
    let of = |burst| batch.burst_bytes(burst).to_vec();
    batch.bursts().iter().map(|burst| (burst.dst, burst.prefix(), of(burst))).collect()
}

impl Rig {
    fn with_group() -> Rig {
        let rig = rig();
        rig.replicator.install_table(Time::ZERO, table()).expect("a right table");
        rig
    }

    pub(super) fn send(&mut self, frames: &[(FlowKey, Vec<u8>)]) -> usize {
        let mut batch = TxBatch::new(CAPS, 64);
        for (flow, frame) in frames {
            batch.push_summed(flow, 0, 0, frame);
        }
        let before = bytes_of(&batch);
        let taken = self.port.send_mut(Time::ZERO, &mut batch, 0).expect("it is not broken");
        assert!(bytes_of(&batch)[taken..] == before[taken..], "the rest is as it was");
        taken
    }

    /// The destinations of sent packets. Checks that each has a correct ICRC.
    pub(super) fn sent(&self) -> Vec<(IpAddr, u32, u32)> {
        let sent = std::mem::take(&mut self.net.lock().unwrap().sent);
        let look = |(dst, ip_id, bytes): &(IpAddr, u16, Vec<u8>)| {
            let view = PacketView::parse(bytes).expect("well formed");
            let flow = FlowKey { dst: *dst, ..flow(1, 0) };
            assert_eq!(icrc_of(&flow, *ip_id, &bytes[..bytes.len() - ICRC_LEN]), view.icrc());
            (*dst, view.dest_qpn().get(), view.psn().get())
        };
        sent.iter().map(look).collect()
    }

    pub(super) fn arrive(&self, from: u8, frames: &[Vec<u8>]) {
        let ip_id = IpId::Guess(0);
        let meta =
            FrameMeta { src: addr(from), dst: addr(1), src_port: PORT, tos: 0, ttl: 9, ip_id };
        let arrival = (meta, frames.concat(), frames[0].len());
        self.net.lock().unwrap().arrivals.push(arrival);
    }

    /// QPN and PSN of the packets that the engine above receives.
    pub(super) fn receive(&mut self) -> Vec<(u32, u32)> {
        let mut got = Vec::new();
        let mut sink = |_: &FrameMeta, bytes: &[u8]| {
            let view = PacketView::parse(bytes).expect("well formed");
            got.push((view.dest_qpn().get(), view.psn().get()));
        };
        self.port.recv(Time::ZERO, &mut sink).expect("it is not broken");
        got
    }
}

#[test]
fn what_is_sent_to_a_group_leaves_once_for_each_member_in_trains() {
    let mut rig = Rig::with_group();
    let to = flow(1, 2);
    let frames: Vec<_> = (0..3).map(|psn| (to, write(&to, GROUP, psn, 0))).collect();
    assert_eq!(rig.send(&frames), 1);
    let expected: Vec<_> = [(2, 0x09_0000), (3, 0x09_0001)]
        .into_iter()
        .flat_map(|(host, qpn)| (0..3).map(move |psn| (addr(host), qpn, psn)))
        .collect();
    assert_eq!(rig.sent(), expected);
}

#[test]
fn without_groups_nothing_is_touched() {
    let mut rig = rig();
    let to = flow(1, 2);
    assert_eq!(rig.send(&[(to, write(&to, GROUP, 0, 0))]), 1);
    assert_eq!(rig.sent(), [(addr(2), GROUP.get(), 0)]);
    let back = flow(2, 1);
    rig.arrive(2, &[ack(&back, id(0), 0)]);
    assert_eq!(rig.receive(), [(id(0).get(), 0)]);
}

#[test]
fn other_packets_of_a_batch_leave_with_the_copies() {
    let mut rig = Rig::with_group();
    let (group, other) = (flow(1, 2), flow(1, 9));
    let frames = [
        (other, write(&other, Qpn::new(0x09_0007), 5, 0)),
        (group, write(&group, GROUP, 0, 0)),
        // A group of an unrelated switch.
        (other, write(&other, Qpn::new(0xfe_0009), 6, 0)),
    ];
    assert_eq!(rig.send(&frames), 3);
    let expected = [
        (addr(9), 0x09_0007, 5),
        (addr(9), 0xfe_0009, 6),
        (addr(2), 0x09_0000, 0),
        (addr(3), 0x09_0001, 0),
    ];
    assert_eq!(rig.sent(), expected);
}

#[test]
fn packets_of_a_long_message_reach_each_member() {
    let mut rig = Rig::with_group();
    let to = flow(1, 2);
    let part = |opcode, psn: u32| {
        let bth = Bth::new(opcode, GROUP, Psn::new(psn));
        let (ext, pad_bytes) = (ExtHeaders::default(), [0; 3]);
        (to, summed(&to, 0, &Packet { bth, ext, payload: &[7; 64], pad_bytes, icrc: 0 }))
    };
    // Those from the middle need the same changes. The first names memory, and needs others.
    let mut message = vec![(to, write(&to, GROUP, 0, 0))];
    message.extend((1..5).map(|psn| part(Opcode::RC_WRITE_MIDDLE, psn)));
    message.push(part(Opcode::RC_WRITE_LAST, 5));
    assert_eq!(rig.send(&message), 2);
    let copies = |host, qpn| (0..6).map(move |psn| (addr(host), qpn, psn));
    let expected: Vec<_> = copies(2, 0x09_0000).chain(copies(3, 0x09_0001)).collect();
    assert_eq!(rig.sent(), expected);
}

#[test]
fn a_full_port_loses_nothing_and_keeps_the_order() {
    let mut rig = Rig::with_group();
    let to = flow(1, 2);
    rig.net.lock().unwrap().room = 1;
    assert_eq!(rig.send(&[(to, write(&to, GROUP, 0, 0))]), 1);
    assert!(rig.port.poll_timeout().is_some(), "it wants to try again");
    // Nothing more is accepted before the copy has been sent.
    assert_eq!(rig.send(&[(to, write(&to, GROUP, 1, 0))]), 0);
    rig.net.lock().unwrap().room = usize::MAX;
    rig.port.flush(Time::ZERO).expect("it is not broken");
    assert_eq!(rig.send(&[(to, write(&to, GROUP, 1, 0))]), 1);
    let psns: Vec<_> = rig.sent().iter().map(|(dst, _, psn)| (*dst, *psn)).collect();
    assert_eq!(psns, [(addr(2), 0), (addr(3), 0), (addr(2), 1), (addr(3), 1)]);
    assert_eq!(rig.port.poll_timeout(), None);
}

#[test]
fn copies_that_a_full_port_does_not_take_follow_in_order() {
    for room in 0..8 {
        let mut rig = Rig::with_group();
        let to = flow(1, 2);
        rig.net.lock().unwrap().room = room;
        // Two bursts: the second packet of the first one is shorter, which ends the burst.
        let send = |psn, ip_id| (to, write(&to, GROUP, psn, ip_id));
        let short = summed(
            &to,
            0,
            &Packet {
                bth: Bth::new(Opcode::RC_SEND_ONLY, GROUP, Psn::new(1)),
                ext: ExtHeaders::default(),
                payload: &[7; 8],
                pad_bytes: [0; 3],
                icrc: 0,
            },
        );
        assert_eq!(rig.send(&[send(0, 0), (to, short), send(2, 0), send(3, 0)]), 2);
        rig.net.lock().unwrap().room = usize::MAX;
        rig.port.flush(Time::ZERO).expect("it is not broken");
        let mut psns = [Vec::new(), Vec::new()];
        for (dst, qpn, psn) in rig.sent() {
            let member = usize::from(dst == addr(3));
            assert_eq!(qpn, 0x09_0000 + member as u32);
            psns[member].push(psn);
        }
        assert_eq!(psns, [[0, 1, 2, 3], [0, 1, 2, 3]], "room for {room} bursts");
    }
}

#[test]
fn answers_are_merged_and_other_frames_of_their_train_arrive() {
    let mut rig = Rig::with_group();
    let to = flow(1, 2);
    rig.send(&[(to, write(&to, GROUP, 0, 0)), (to, write(&to, GROUP, 1, 0))]);
    let psns: Vec<_> = rig.sent().iter().map(|(dst, _, psn)| (*dst, *psn)).collect();
    assert_eq!(psns, [(addr(2), 0), (addr(2), 1), (addr(3), 0), (addr(3), 1)], "branch by branch");
    // The second ACK is for another queue pair of this device.
    rig.arrive(2, &[ack(&flow(2, 1), id(0), 1), ack(&flow(2, 1), Qpn::new(0x07_0044), 70)]);
    assert_eq!(rig.receive(), [(0x07_0044, 70)], "one member lacks it");
    rig.arrive(3, &[ack(&flow(3, 1), id(1), 1)]);
    assert_eq!(rig.receive(), [(SENDER_QPN.get(), 1)]);
}

#[test]
fn a_stranger_speaks_for_nobody() {
    let mut rig = Rig::with_group();
    let to = flow(1, 2);
    rig.send(&[(to, write(&to, GROUP, 0, 0))]);
    rig.sent();
    // A packet that claims the sender's own address is not from the sender.
    rig.arrive(1, &[ack(&flow(1, 1), GROUP, 0)]);
    // A response from another host does not count.
    rig.arrive(4, &[ack(&flow(4, 1), id(0), 0)]);
    rig.arrive(3, &[ack(&flow(3, 1), id(1), 0)]);
    assert_eq!(rig.receive(), [(GROUP.get(), 0)]);
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.replicator.engine().counters().drop_source, 1);
}

/// A round of a simulated port, which takes so many datagrams.
struct PlayedRound {
    datagrams: Vec<(FrameMeta, Vec<u8>, usize)>,
    room: usize,
    sent: Vec<(IpAddr, u16, Vec<u8>)>,
}

impl Round for PlayedRound {
    fn count(&self) -> usize {
        self.datagrams.len()
    }

    fn envelope(&self, datagram: usize) -> Option<(FrameMeta, usize)> {
        let (meta, _, frame_len) = &self.datagrams[datagram];
        Some((*meta, *frame_len))
    }

    fn bytes(&mut self, datagram: usize) -> &mut [u8] {
        &mut self.datagrams[datagram].1
    }

    fn send(&mut self, to: &[Onward]) -> usize {
        let taken = to.len().min(self.room);
        self.room -= taken;
        for onward in &to[..taken] {
            let frames = self.datagrams[onward.datagram].1.chunks(onward.frame_len).enumerate();
            self.sent.extend(frames.map(|(id, frame)| (onward.dst, id as u16, frame.to_vec())));
        }
        taken
    }
}

impl PlayedRound {
    fn new(trains: &[(u8, Vec<Vec<u8>>)], room: usize) -> PlayedRound {
        let datagram = |(from, frames): &(u8, Vec<Vec<u8>>)| {
            let (ip_id, src) = (IpId::Guess(0), addr(*from));
            let meta = FrameMeta { src, dst: addr(8), src_port: PORT, tos: 0, ttl: 9, ip_id };
            (meta, frames.concat(), frames[0].len())
        };
        PlayedRound { datagrams: trains.iter().map(datagram).collect(), room, sent: Vec::new() }
    }

    /// Passes the round to a switch; returns the PSNs that each member gets, and how many packets
    /// were copied. Checks every packet's QPN and ICRC.
    fn forward(&mut self, engine: &mut Switch) -> ([Vec<u32>; 2], usize) {
        let (mut copier, mut out) = (Copier::of_switch(), Outgoing::new(CAPS));
        copier.forward(Time::ZERO, engine, PORT, self, &mut out);
        let net = Arc::new(Mutex::new(Net { room: usize::MAX, ..Net::default() }));
        assert!(out.send(Time::ZERO, &mut Played(Arc::clone(&net))).expect("it is not broken"));
        let copied = std::mem::take(&mut net.lock().unwrap().sent);
        let mut psns = [Vec::new(), Vec::new()];
        for (dst, ip_id, bytes) in self.sent.iter().chain(&copied) {
            let view = PacketView::parse(bytes).expect("well formed");
            let flow = FlowKey { dst: *dst, ..flow(8, 0) };
            assert_eq!(icrc_of(&flow, *ip_id, &bytes[..bytes.len() - ICRC_LEN]), view.icrc());
            let member = usize::from(*dst == addr(3));
            assert_eq!(view.dest_qpn().get(), 0x09_0000 + member as u32);
            psns[member].push(view.psn().get());
        }
        (psns, copied.len())
    }
}

/// Another group of the same sender: its first member is on the same host, its second is not.
fn other_table() -> Table {
    let mut table = table();
    table.key.id = OTHER_GROUP;
    table.branches[1].dst = addr(5);
    for branch in &mut table.branches {
        let leaf = branch.leaf.as_mut().expect("a leaf");
        leaf.qpn = Qpn::new(leaf.qpn.get() + 0x100);
    }
    let root = table.root.as_mut().expect("a root");
    root.members[1].addr = addr(5);
    for member in &mut root.members {
        member.id = Qpn::new(member.id.get() + 0x100);
    }
    table
}

/// Whether each packet went to the host of the member that its QPN names.
fn are_at_their_members<'a>(mut sent: impl Iterator<Item = (IpAddr, &'a [u8])>) -> bool {
    let is_right = |(dst, bytes): (IpAddr, &[u8])| {
        let qpn = PacketView::parse(bytes).expect("well formed").dest_qpn().get();
        let host = match qpn {
            0x09_0000 | 0x09_0100 => 2,
            0x09_0001 => 3,
            _ => 5,
        };
        dst == addr(host)
    };
    sent.all(is_right)
}

#[test]
fn two_groups_in_one_train_reach_their_own_members() {
    let ids = [GROUP, OTHER_GROUP, GROUP, OTHER_GROUP];
    let psns = [0, 0, 1, 1];
    let mut engine = switch();
    engine.install(Time::ZERO, at_switch(other_table())).expect("a right table");
    let frame = |i: usize| write_of(4096, &flow(1, 8), ids[i], psns[i], i as u16);
    let mut round = PlayedRound::new(&[(1, (0..4).map(frame).collect())], 9);
    let (mut copier, mut out) = (Copier::of_switch(), Outgoing::new(CAPS));
    copier.forward(Time::ZERO, &mut engine, PORT, &mut round, &mut out);
    let net = Arc::new(Mutex::new(Net { room: usize::MAX, ..Net::default() }));
    assert!(out.send(Time::ZERO, &mut Played(Arc::clone(&net))).expect("it is not broken"));
    let net = net.lock().unwrap();
    let sent = || round.sent.iter().chain(&net.sent);
    assert_eq!(sent().count(), 8, "four frames for two members each");
    assert!(are_at_their_members(sent().map(|(dst, _, bytes)| (*dst, &bytes[..]))));
}

#[test]
fn two_groups_in_one_burst_of_a_port_reach_their_own_members() {
    let mut rig = Rig::with_group();
    rig.replicator.install_table(Time::ZERO, other_table()).expect("a right table");
    let frames = [(GROUP, 0), (OTHER_GROUP, 0), (GROUP, 1), (OTHER_GROUP, 1)];
    let frames: Vec<_> = (0..)
        .zip(frames)
        .map(|(id, (group, psn))| (flow(1, 2), write(&flow(1, 2), group, psn, id)))
        .collect();
    rig.send(&frames);
    let net = rig.net.lock().unwrap();
    assert_eq!(net.sent.len(), 8, "four frames for two members each");
    assert!(are_at_their_members(net.sent.iter().map(|(dst, _, bytes)| (*dst, &bytes[..]))));
}

/// A switch at host 8 with the same group.
fn switch() -> Switch {
    let mut switch = Switch::new(SwitchLimits::default());
    switch.install(Time::ZERO, at_switch(table())).expect("a right table");
    switch
}

/// The table of a switch at host 8 instead of a port.
fn at_switch(mut table: Table) -> Table {
    let origin = Origin { addr: addr(8), port: PORT };
    table.branches.iter_mut().for_each(|branch| branch.src = Some(origin));
    if let Some(root) = &mut table.root {
        (root.answers_to, root.peer, root.in_port) = (addr(8), origin, false);
        root.members
            .iter_mut()
            .zip(0..)
            .for_each(|(member, n)| member.id = Qpn::new(table.key.id.get() + 0x100 + n));
    }
    table
}

/// A train of the sender's WRITEs.
fn train(psns: std::ops::Range<u32>, len: u32) -> (u8, Vec<Vec<u8>>) {
    let frame = |(id, psn)| write_of(len, &flow(1, 8), GROUP, psn, id);
    (1, (0..).zip(psns).map(frame).collect())
}

#[test]
fn a_switch_sends_long_trains_on_from_where_they_are() {
    for room in 0..8 {
        let answer = ack(&flow(2, 8), Qpn::new(0xfe_0100), 0);
        let mut short = train(10..14, 4096);
        short.1.push(write_of(8, &flow(1, 8), GROUP, 14, 4));
        let trains = [train(0..5, 4096), (2, vec![answer]), train(5..10, 4096), short];
        let mut round = PlayedRound::new(&trains, room);
        let (psns, copied) = round.forward(&mut switch());
        let all: Vec<u32> = (0..15).collect();
        assert_eq!(psns, [all.clone(), all], "room for {room} datagrams");
        // What is sent in place is not copied: five packets in each of six datagrams.
        assert_eq!(copied, 30 - 5 * room.min(6));
    }
}

#[test]
fn a_switch_copies_short_trains_into_one() {
    let mut round = PlayedRound::new(&[train(0..3, 64), train(3..5, 64)], 9);
    let (psns, copied) = round.forward(&mut switch());
    assert_eq!((psns, copied), ([(0..5).collect(), (0..5).collect()], 10));
}

#[test]
fn a_switch_copies_what_members_lack_differently() {
    let mut switch = switch();
    let mut round = PlayedRound::new(&[train(0..4, 4096)], 9);
    assert_eq!(round.forward(&mut switch), ([(0..4).collect(), (0..4).collect()], 0));
    let answer = ack(&flow(2, 8), Qpn::new(0xfe_0100), 1);
    let mut round = PlayedRound::new(&[(2, vec![answer]), train(0..4, 4096)], 9);
    assert_eq!(round.forward(&mut switch), ([vec![2, 3], (0..4).collect()], 6));
}
