//! A group that IP multicast carries: the sender's port, and the last switch in a member's.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_io::{Port, Translator};
use bowline_multicast::{Branch, GroupKey, Leaf, Place, Region};
use bowline_nic::{FrameMeta, IpId, Time};
use bowline_wire::{
    Bth, ExtHeaders, FlowKey, ICRC_LEN, Opcode, Packet, PacketView, Psn, Qpn, icrc_of,
};

use super::member::{LastSwitch, Membership};
use super::probe::probe;
use super::tests::{GROUP, PORT, Rig, ack, addr, flow, id, rig, summed, table, write, write_of};

const CAST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 192, 0, 9));
const OWN_QPN: Qpn = Qpn::new(0x05_0033);
const NONCE: [u8; 16] = [42; 16];

fn to_group() -> FlowKey {
    FlowKey { dst: CAST, ..flow(1, 0) }
}

fn with_trunk() -> Rig {
    let mut table = table();
    table.branches.push(Branch { dst: CAST, src: None, leaf: None });
    if let Some(root) = &mut table.root {
        root.trunk = Some(2);
    }
    let rig = rig();
    rig.replicator.install_table(Time::ZERO, table).expect("a right table");
    rig
}

#[test]
fn what_all_lack_leaves_once_and_what_one_lacks_goes_to_that_one() {
    let mut rig = with_trunk();
    let to = flow(1, 2);
    let frames: Vec<_> = (0..3).map(|psn| (to, write(&to, GROUP, psn, 0))).collect();
    assert_eq!(rig.send(&frames), 1);
    let group: Vec<_> = (0..3).map(|psn| (CAST, GROUP.get(), psn)).collect();
    assert_eq!(rig.sent(), group);
    // One member has the first two packets, and the other has the first.
    rig.arrive(2, &[ack(&flow(2, 1), id(0), 1)]);
    rig.arrive(3, &[ack(&flow(3, 1), id(1), 0)]);
    rig.receive();
    assert_eq!(rig.send(&frames[1..]), 1);
    assert_eq!(rig.sent(), [(addr(3), 0x09_0001, 1), (CAST, GROUP.get(), 2)]);
}

#[test]
fn a_multicast_address_that_reaches_nobody_any_more_is_not_used_for_a_while() {
    let mut rig = with_trunk();
    let to = flow(1, 2);
    let send = |rig: &mut Rig, psn: u32| {
        assert_eq!(rig.send(&[(to, write(&to, GROUP, psn, 0))]), 1);
        rig.sent().iter().map(|(dst, ..)| *dst).collect::<Vec<_>>()
    };
    for attempt in 0..2 {
        assert_eq!(send(&mut rig, 0), [CAST], "attempt {attempt}");
    }
    for psn in [0, 0, 1, 2, 1000] {
        assert_eq!(send(&mut rig, psn), [addr(2), addr(3)], "packet {psn}");
    }
    for (host, member) in [(2, 0), (3, 1)] {
        rig.arrive(host, &[ack(&flow(host, 1), id(member), 1000)]);
    }
    rig.receive();
    assert_eq!(send(&mut rig, 4095), [addr(2), addr(3)]);
    assert_eq!(send(&mut rig, 4096), [CAST], "it is tried again");
}

#[test]
fn probes_leave_once_and_are_the_longest_packets() {
    let mut rig = with_trunk();
    let packet = probe(&to_group(), GROUP, &NONCE, 1024);
    assert_eq!(packet.len(), 12 + 16 + 4 + 1024 + 4);
    rig.replicator.push_probe(to_group(), packet.clone());
    for expected in [1, 0] {
        rig.port.flush(Time::ZERO).expect("it is not broken");
        assert_eq!(rig.sent().len(), expected);
    }
    // Nothing comes before the rest of a batch that the port below has not taken.
    let other = flow(1, 9);
    let unicast = [(other, write(&other, Qpn::new(0x09_0007), 5, 0))];
    rig.net.lock().unwrap().room = 0;
    assert_eq!(rig.send(&unicast), 0);
    rig.replicator.push_probe(to_group(), packet);
    rig.net.lock().unwrap().room = usize::MAX;
    rig.port.flush(Time::ZERO).expect("it is not broken");
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.send(&unicast), 1);
    rig.port.flush(Time::ZERO).expect("it is not broken");
    assert_eq!(rig.sent().len(), 2);
}

struct Member {
    last: LastSwitch,
    heard: Arc<AtomicBool>,
}

impl Member {
    fn new() -> Member {
        let heard = Arc::new(AtomicBool::new(false));
        let membership = Membership {
            group: CAST,
            key: GroupKey { sender: addr(1), id: GROUP },
            regions: vec![Region { va: 0x1000, len: 0x1000, rkey: 7 }],
            leaf: Leaf { qpn: OWN_QPN, places: vec![Place { va: 0xa000, rkey: 99 }] },
            nonce: NONCE,
        };
        let last = LastSwitch::new(addr(5), PORT, membership, Arc::clone(&heard));
        Member { last: last.expect("a right group"), heard }
    }

    /// PSNs of what the engine gets of a train, each with a correct ICRC for its place, and with
    /// the member's own QPN, address and key.
    fn take(&mut self, from: u8, frames: &[Vec<u8>]) -> Vec<u32> {
        let (ip_id, src) = (IpId::Guess(0), addr(from));
        let meta = FrameMeta { src, dst: CAST, src_port: PORT, tos: 0, ttl: 1, ip_id };
        let mut psns = Vec::new();
        let mut sink = |meta: &FrameMeta, bytes: &[u8]| {
            let view = PacketView::parse(bytes).expect("well formed");
            let IpId::Guess(ip_id) = meta.ip_id else { panic!("{meta:?}") };
            let flow = flow(1, 5);
            assert_eq!((meta.src, meta.dst), (flow.src, flow.dst));
            assert_eq!(icrc_of(&flow, ip_id, &bytes[..bytes.len() - ICRC_LEN]), view.icrc());
            assert_eq!(view.dest_qpn(), OWN_QPN);
            assert!(view.reth().is_none_or(|reth| (reth.va, reth.rkey) == (0xa000, 99)));
            psns.push(view.psn().get());
        };
        let (mut bytes, len) = (frames.concat(), frames[0].len());
        let count = self.last.frames(Time::ZERO, &meta, &mut bytes, len, &mut sink);
        assert_eq!(count, psns.len());
        psns
    }
}

#[test]
fn a_member_gets_the_groups_packets_as_its_own() {
    let mut member = Member::new();
    let to = to_group();
    let train: Vec<_> = (0..4).map(|psn| write(&to, GROUP, psn, psn as u16)).collect();
    assert_eq!(member.take(1, &train), [0, 1, 2, 3]);
    assert_eq!(member.take(1, &[write_of(24, &to, GROUP, 9, 0)]), [9]);
    let middle = |psn: u32, id: Qpn, opcode, len: usize| {
        let bth = Bth::new(opcode, id, Psn::new(psn));
        let payload = &vec![7; len];
        let (ext, pad_bytes) = (ExtHeaders::default(), [0; 3]);
        let packet = Packet { bth, ext, payload, pad_bytes, icrc: 0 };
        summed(&to, (psn % 4) as u16, &packet)
    };
    for (round, opcode) in [Opcode::RC_WRITE_MIDDLE, Opcode::RC_SEND_MIDDLE].into_iter().enumerate()
    {
        for (len, first) in [(256, 0), (256, 4), (512, 8)] {
            let psns = [0, 1, 2].map(|psn| psn + first + 100 * round as u32);
            let train = psns.map(|psn| middle(psn, GROUP, opcode, len));
            // PSNs are multiples of 4 at the start of a train, like identifications.
            assert_eq!(member.take(1, &train), psns);
        }
        let other = middle(0, Qpn::new(0xfe_0001), opcode, 512);
        assert!(member.take(1, &[other]).is_empty(), "a group of the same sender");
        assert!(member.take(9, &[middle(0, GROUP, opcode, 512)]).is_empty(), "another sender");
    }
}

#[test]
fn strangers_packets_and_those_of_other_groups_are_dropped_one_by_one() {
    let mut member = Member::new();
    let to = to_group();
    let ours = |psn: u32| write(&to, GROUP, psn, psn as u16);
    assert!(member.take(9, &[ours(0)]).is_empty(), "it comes from another address");
    // The kernel may merge a forged packet with the sender's.
    let other = write(&to, Qpn::new(0xfe_0001), 2, 2);
    assert_eq!(member.take(1, &[ours(0), ours(1), other.clone(), ours(3)]), [0, 1, 3]);
    assert_eq!(member.take(1, &[other.clone(), ours(1)]), [1]);
    assert_eq!(member.take(1, &[ours(0), other]), [0]);
    let outside = write_of(0x1004, &to, GROUP, 0, 0);
    assert!(member.take(1, &[outside]).is_empty(), "it leaves the region");
    assert!(member.take(1, &[ack(&to, GROUP, 0)]).is_empty(), "a group has one direction");
    for len in 0..16 {
        assert!(member.take(1, &[vec![0xff; len]]).is_empty(), "{len} bytes");
    }
}

#[test]
fn a_probe_counts_only_with_the_secret_number_and_from_the_sender() {
    let mut member = Member::new();
    let to = to_group();
    let right = probe(&to, GROUP, &NONCE, 256);
    for (from, packet) in [(9, &right), (1, &probe(&to, GROUP, &[43; 16], 256))] {
        assert!(member.take(from, std::slice::from_ref(packet)).is_empty());
        assert!(!member.heard.load(Ordering::Acquire));
    }
    assert!(member.take(1, &[right]).is_empty());
    assert!(member.heard.load(Ordering::Acquire));
}
