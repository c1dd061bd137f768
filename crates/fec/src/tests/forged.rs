//! What an attacker who forges packets can do, and how soon the connection recovers.

use bowline_nic::{Mtu, QpType, SendOp};
use bowline_wire::{Bth, FlowKey, Opcode, PacketView, Psn, ROCE_UDP_PORT, RepairHeader, icrc_of};

use super::repair::is_data;
use super::rig::Rig;
use crate::decode::REACH;
use crate::{FecConfig, FecMode, Params};

const PAYLOAD: usize = 1024;

/// A connection that is coded, in the middle of its life.
fn warm(qp_type: QpType) -> Rig {
    let params = Params::new(8, 1).unwrap();
    let mut rig = Rig::acquainted(qp_type, Mtu::B1024, FecConfig::new(FecMode::Fixed(params)));
    rig.post(0, 1, SendOp::WriteImm(rig.remote(1, 0), 3), 100_000, 8 * PAYLOAD);
    rig.run(|_, _| true);
    rig
}

/// Seals a packet in the name of end 0.
fn seal(rig: &Rig, mut packet: Vec<u8>) -> Vec<u8> {
    let [from, to] = [0, 1].map(|i| rig.ends[i].addr);
    let (src_port, dst_port) = (ROCE_UDP_PORT, ROCE_UDP_PORT);
    let flow = FlowKey { src: from, dst: to, src_port, dst_port };
    let icrc = icrc_of(&flow, 0, &packet);
    packet.extend(icrc.to_le_bytes());
    packet.insert(0, 0);
    packet
}

/// A repair for a block of one packet, `ahead` of the first PSN of the connection.
fn repair(rig: &Rig, qp_type: QpType, ahead: u32) -> Vec<u8> {
    let opcode = match qp_type {
        QpType::Uc => Opcode::UC_SEND_ONLY,
        _ => Opcode::RC_SEND_ONLY,
    };
    let header = RepairHeader {
        has_first: true,
        has_last: true,
        r: 1,
        c: 1,
        base: Psn::new(0xff_fff0).add(ahead),
        count: 1,
        opcode: opcode.0,
        len: PAYLOAD as u16,
        last_len: PAYLOAD as u16,
        ..RepairHeader::default()
    };
    let mut packet = vec![0; Bth::LEN + RepairHeader::LEN];
    let (bth, rest) = packet.split_first_chunk_mut().unwrap();
    Bth::new(Opcode::RC_REPAIR, rig.ends[1].qpn, Psn::new(5)).emit(bth);
    header.emit(rest.first_chunk_mut().unwrap());
    packet.extend([0xee; PAYLOAD]);
    seal(rig, packet)
}

/// A data packet, `ahead` of the first PSN of the connection.
fn data(rig: &Rig, ahead: u32) -> Vec<u8> {
    let mut packet = vec![0; Bth::LEN];
    let psn = Psn::new(0xff_fff0).add(ahead);
    let bth = Bth::new(Opcode::UC_SEND_ONLY, rig.ends[1].qpn, psn);
    bth.emit(packet.first_chunk_mut().unwrap());
    packet.extend([0xee; 8]);
    seal(rig, packet)
}

/// Sends messages, of each of which a packet is lost; returns how many were repaired.
fn repaired(rig: &mut Rig, messages: u64) -> u64 {
    let before = rig.ends[1].counters.snapshot().recovered;
    for id in 0..messages {
        rig.post(0, id, SendOp::WriteImm(rig.remote(1, 0), 3), 100_000, 8 * PAYLOAD);
        let mut count = 0;
        rig.run(|from, packet: &PacketView<'_>| {
            count += u32::from(from == 0 && is_data(packet));
            !(from == 0 && is_data(packet) && count == 4)
        });
    }
    rig.ends[1].counters.snapshot().recovered - before
}

#[test]
fn repairs_of_what_is_far_ahead_take_no_memory() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut rig = warm(qp_type);
        for i in 0..2_000 {
            let frame = repair(&rig, qp_type, 1_000 + i * 17);
            rig.deliver(1, &frame);
        }
        assert_eq!(rig.ends[1].pool.used_bytes(), 0);
        assert_eq!(rig.ends[1].counters.snapshot().rejected, 2_000);
        assert_eq!(repaired(&mut rig, 5), 5);
    }
}

/// An attacker who has found the connection can only fill its share of the pool.
#[test]
fn repairs_within_reach_take_a_bounded_share_of_the_memory() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut rig = warm(qp_type);
        for ahead in 9..2_000 {
            let frame = repair(&rig, qp_type, ahead);
            rig.deliver(1, &frame);
        }
        let buffer = PAYLOAD + 100;
        assert!(rig.ends[1].pool.used_bytes() <= (REACH as usize + 33) * buffer);
    }
}

#[test]
fn one_forged_packet_does_not_end_the_protection_of_an_unreliable_connection() {
    type Forge = fn(&Rig, u32) -> Vec<u8>;
    let forges: [(&str, Forge); 2] =
        [("repair", |rig, ahead| repair(rig, QpType::Uc, ahead)), ("data", data)];
    for (what, forge) in forges {
        for ahead in [1_000, 100_000, (1 << 23) - 100, 1 << 23, (1 << 24) - 1_000] {
            let mut rig = warm(QpType::Uc);
            let frame = forge(&rig, ahead);
            rig.deliver(1, &frame);
            rig.run(|_, _| true);
            // At worst the next message has lost its protection.
            let repaired = repaired(&mut rig, 6);
            assert!(repaired >= 5, "{what} {ahead} ahead: {repaired} of 6 were repaired");
            assert_eq!(rig.ends[1].pool.used_bytes(), 0, "{what} {ahead}");
        }
    }
}
