//! Properties over any traffic and any losses.

use bowline_nic::{Mtu, QpType, SendOp, WcStatus};
use bowline_wire::{
    Bth, FlowKey, ICRC_LEN, OpKind, PacketView, Psn, REPAIR_EXT_LEN, RepairHeader, ShimPacket,
    icrc_of,
};
use proptest::prelude::*;

use super::repair::is_data;
use super::rig::{MEMORY, Rig};
use crate::{FecConfig, FecMode, Params};

#[derive(Clone, Copy, Debug)]
enum Op {
    Send,
    Write,
    WriteImm,
    Read,
}

fn code() -> impl Strategy<Value = Params> {
    (1u8..=16).prop_flat_map(|c| (c..=64u8, Just(c))).prop_map(|(r, c)| Params::new(r, c).unwrap())
}

fn ops() -> impl Strategy<Value = Vec<(Op, usize)>> {
    let op = prop_oneof![Just(Op::Send), Just(Op::Write), Just(Op::WriteImm), Just(Op::Read)];
    let len = prop_oneof![0usize..20, 200usize..2_000, 2_000usize..60_000];
    prop::collection::vec((op, len), 1..8)
}

fn mtu() -> impl Strategy<Value = Mtu> {
    prop_oneof![Just(Mtu::B256), Just(Mtu::B1024), Just(Mtu::B4096)]
}

fn post(rig: &mut Rig, ops: &[(Op, usize)]) {
    for (id, (op, len)) in ops.iter().enumerate() {
        let op = match op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write(rig.remote(1, 0)),
            Op::WriteImm => SendOp::WriteImm(rig.remote(1, 70_000), 9),
            Op::Read => SendOp::Read(rig.remote(1, 300_000)),
        };
        // READs land behind what others send from.
        let offset = if matches!(op, SendOp::Read(_)) { 300_000 } else { 100_000 };
        rig.post(0, id as u64, op, offset, *len);
    }
}

fn check(rig: &mut Rig, ops: &[(Op, usize)]) {
    let sends: Vec<_> = rig.statuses(0).into_iter().filter(|(id, _)| *id < 1_000).collect();
    let wanted: Vec<_> = (0..ops.len() as u64).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(sends, wanted);
    for (op, len) in ops {
        let [a, b] = &rig.ends;
        match op {
            Op::Read => assert!(a.memory.to_vec(300_000, *len) == b.memory.to_vec(300_000, *len)),
            Op::Write => assert!(b.memory.to_vec(0, *len) == a.memory.to_vec(100_000, *len)),
            _ => {}
        }
    }
}

/// What arrives of a flight if each lane, its repair included, loses at most one packet.
fn lose_within_power(
    frames: &[Vec<u8>],
    draw: &mut impl FnMut(usize) -> usize,
) -> (Vec<Vec<u8>>, u64) {
    let mut lost = vec![false; frames.len()];
    let mut lost_data = 0;
    let views: Vec<_> = frames.iter().map(|f| PacketView::parse(&f[1..]).unwrap()).collect();
    for (at, view) in views.iter().enumerate() {
        let Some(ShimPacket::Repair(header, _)) = (view.info().kind == OpKind::Repair)
            .then(|| ShimPacket::parse(view.payload()))
            .flatten()
        else {
            continue;
        };
        let mut lane = vec![at];
        for k in (header.isn..header.count).step_by(header.c.into()) {
            let psn = header.base.add(k.into());
            let same = |v: &PacketView<'_>| {
                let response = v.info().kind == OpKind::ReadResponse;
                is_data(v) && v.psn() == psn && response == header.response
            };
            lane.extend(views[..at].iter().rposition(same));
        }
        // One place more than there are packets: sometimes nothing is lost.
        if let Some(victim) = lane.get(draw(lane.len() + 1)) {
            lost[*victim] = true;
            lost_data += u64::from(*victim != at);
        }
    }
    let kept = frames.iter().zip(&lost).filter(|(_, lost)| !**lost).map(|(f, _)| f.clone());
    (kept.collect(), lost_data)
}

fn drawer(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn losses_within_the_codes_power_are_never_noticed(
        params in code(), mtu in mtu(), ops in ops(), seed: u64,
    ) {
        let config = FecConfig::new(FecMode::Fixed(params));
        let mut rig = Rig::acquainted(QpType::Rc, mtu, config);
        post(&mut rig, &ops);
        let mut draw = drawer(seed);
        let mut lost = [0; 2];
        rig.run_flights(|from, frames| {
            let (kept, data) = lose_within_power(frames, &mut draw);
            lost[from] += data;
            kept
        });
        check(&mut rig, &ops);
        for (end, peer) in [(0, 1), (1, 0)] {
            let (end, peer) = (&rig.ends[end], &rig.ends[peer]);
            prop_assert_eq!(end.nic.counters().retransmitted_packets, 0);
            // Bit for bit, in order.
            prop_assert!(*end.sent.lock().unwrap() == *peer.seen.lock().unwrap());
            prop_assert_eq!(end.pool.used_bytes(), 0);
        }
        for end in 0..2 {
            prop_assert_eq!(rig.ends[end].counters.snapshot().recovered, lost[1 - end]);
        }
    }

    #[test]
    fn under_any_losses_copies_and_disorder_all_data_arrives(
        params in code(), mtu in mtu(), ops in ops(), seed: u64, percent in 1usize..12,
    ) {
        let config = FecConfig::new(FecMode::Fixed(params));
        let mut rig = Rig::acquainted(QpType::Rc, mtu, config);
        post(&mut rig, &ops);
        let mut draw = drawer(seed);
        let mut flights = 0;
        rig.run_flights(|_, frames| {
            flights += 1;
            // The link becomes clean later, so that the test ends.
            if flights > 60 {
                return frames.to_vec();
            }
            let mut arrive = Vec::new();
            for frame in frames {
                match draw(100) {
                    n if n < percent => {}
                    n if n < 2 * percent => arrive.extend([frame.clone(), frame.clone()]),
                    n if n < 3 * percent => {
                        let back = draw(arrive.len().min(5) + 1);
                        arrive.insert(arrive.len() - back, frame.clone());
                    }
                    _ => arrive.push(frame.clone()),
                }
            }
            arrive
        });
        check(&mut rig, &ops);
        for end in &rig.ends {
            prop_assert_eq!(end.pool.used_bytes(), 0);
        }
    }

    #[test]
    fn repairs_of_any_content_write_nothing_but_what_a_request_allows(
        params in code(), ops in ops(), seed: u64,
        forged in prop::collection::vec((any::<[u8; RepairHeader::LEN]>(), 0usize..1_400), 1..40),
    ) {
        let config = FecConfig::new(FecMode::Fixed(params));
        let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, config);
        post(&mut rig, &ops);
        let mut draw = drawer(seed);
        let before = rig.ends[1].memory.to_vec(0, MEMORY);
        let mut psn = Psn::new(0);
        let qpns = [rig.ends[0].qpn, rig.ends[1].qpn];
        rig.run_flights(|from, frames| {
            let mut arrive = Vec::new();
            for frame in frames {
                let view = PacketView::parse(&frame[1..]).unwrap();
                if is_data(&view) {
                    psn = view.psn();
                }
                if draw(8) == 0 {
                    let (bytes, len) = &forged[draw(forged.len())];
                    let near = psn.add(draw(8) as u32).sub(4);
                    arrive.push(forge(from, qpns[1 - from], bytes, *len, near, &mut draw));
                }
                arrive.push(frame.clone());
            }
            arrive
        });
        check(&mut rig, &ops);
        // Without losses there is nothing to restore, so a forged repair restores nothing.
        for end in 0..2 {
            prop_assert_eq!(rig.ends[end].nic.counters().access_violations, 0);
        }
        let after = rig.ends[1].memory.to_vec(0, MEMORY);
        prop_assert!(before[400_000..500_000] == after[400_000..500_000]);
    }

    /// With losses, a repair of any content and a valid ICRC may put a packet in the place of a
    /// lost one: that is its purpose. The result is then a packet of the connection, and can do no
    /// more than one.
    #[test]
    fn forged_repairs_reach_no_further_than_packets_of_the_connection(
        params in code(), ops in ops(), seed: u64, percent in 1usize..30,
        forged in prop::collection::vec((any::<[u8; RepairHeader::LEN]>(), 0usize..1_400), 1..40),
    ) {
        let config = FecConfig::new(FecMode::Fixed(params));
        let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, config);
        post(&mut rig, &ops);
        let mut draw = drawer(seed);
        let before = [0, 1].map(|end| rig.ends[end].memory.to_vec(0, MEMORY));
        let mut psn = Psn::new(0);
        let qpns = [rig.ends[0].qpn, rig.ends[1].qpn];
        let mut flights = 0;
        rig.run_flights(|from, frames| {
            flights += 1;
            let mut arrive = Vec::new();
            for frame in frames {
                let view = PacketView::parse(&frame[1..]).unwrap();
                if is_data(&view) {
                    psn = view.psn();
                }
                // The link becomes clean later, so that the test ends.
                if flights < 60 && draw(4) == 0 {
                    let near = psn.add(draw(8) as u32).sub(4);
                    arrive.push(match shim_repair(&view).filter(|_| draw(2) == 0) {
                        // A real one, with some bytes changed.
                        Some(header) => tamper(from, qpns[1 - from], &header, &view, &mut draw),
                        None => {
                            let (bytes, len) = &forged[draw(forged.len())];
                            forge(from, qpns[1 - from], bytes, *len, near, &mut draw)
                        }
                    });
                }
                if flights >= 60 || draw(100) >= percent {
                    arrive.push(frame.clone());
                }
            }
            arrive
        });
        for (end, before) in rig.ends.iter().zip(&before) {
            let after = end.memory.to_vec(0, MEMORY);
            // Where no request of either end points to.
            prop_assert!(before[400_000..500_000] == after[400_000..500_000]);
        }
    }
}

/// The header of a repair.
fn shim_repair(view: &PacketView<'_>) -> Option<RepairHeader> {
    match ShimPacket::parse(view.payload()).filter(|_| view.info().kind == OpKind::Repair)? {
        ShimPacket::Repair(header, _) => Some(header),
        _ => None,
    }
}

/// A repair with some bytes changed, in its header or behind, and sealed again.
fn tamper(
    from: usize,
    qpn: bowline_wire::Qpn,
    header: &RepairHeader,
    view: &PacketView<'_>,
    draw: &mut impl FnMut(usize) -> usize,
) -> Vec<u8> {
    let mut bytes = [0; RepairHeader::LEN];
    header.emit(&mut bytes);
    let mut body = view.payload()[RepairHeader::LEN..].to_vec();
    // Extended headers stay: with a valid key they may address any memory that it covers.
    let payload_at = if header.has_ext { REPAIR_EXT_LEN } else { 0 };
    for _ in 0..draw(3) + 1 {
        let byte = match body.get_mut(payload_at..) {
            Some(payload) if !payload.is_empty() && draw(2) == 0 => {
                let at = draw(payload.len());
                &mut payload[at]
            }
            // The first byte is the type.
            _ => &mut bytes[1 + draw(RepairHeader::LEN - 1)],
        };
        *byte ^= 1 << draw(8);
    }
    seal(from, qpn, view.psn(), &bytes, &body)
}

/// A well-sealed repair packet with a header of any bits, close enough to the truth to be looked
/// at.
fn forge(
    from: usize,
    qpn: bowline_wire::Qpn,
    bytes: &[u8; RepairHeader::LEN],
    len: usize,
    near: Psn,
    draw: &mut impl FnMut(usize) -> usize,
) -> Vec<u8> {
    let mut header = RepairHeader::parse(bytes);
    header.base = near;
    if draw(4) > 0 {
        header.r = header.r % 64 + 1;
        header.c = header.c % header.r.min(16) + 1;
        header.count = header.count % header.r + 1;
        header.isn %= header.c.min(header.count);
    }
    if draw(2) == 0 {
        header.response = false;
    }
    let payload: Vec<u8> = (0..len).map(|_| draw(256) as u8).collect();
    let mut bytes = [0; RepairHeader::LEN];
    header.emit(&mut bytes);
    seal(from, qpn, near, &bytes, &payload)
}

/// A repair packet of these parts, as the peer's shim would send it.
fn seal(
    from: usize,
    qpn: bowline_wire::Qpn,
    psn: Psn,
    header: &[u8; RepairHeader::LEN],
    body: &[u8],
) -> Vec<u8> {
    let mut bth = Bth::new(bowline_wire::Opcode::RC_REPAIR, qpn, psn);
    bth.pad = bowline_nic::pad_of(body.len());
    let mut packet = vec![0; Bth::LEN];
    bth.emit(packet.first_chunk_mut().unwrap());
    packet.extend(header);
    packet.extend(body);
    packet.resize(packet.len().next_multiple_of(4), 0);
    let addr = |i: usize| core::net::IpAddr::from([10, 0, 0, i as u8 + 1]);
    let port = bowline_wire::ROCE_UDP_PORT;
    let key = FlowKey { src: addr(from), dst: addr(1 - from), src_port: port, dst_port: port };
    let icrc = icrc_of(&key, 0, &packet);
    debug_assert_eq!(ICRC_LEN, 4);
    packet.extend(icrc.to_le_bytes());
    [vec![0], packet].concat()
}
