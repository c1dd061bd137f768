//! What is repaired, what is not, and what the other end sees of it.

use bowline_nic::{Mtu, QpType, SendOp, WcStatus};
use bowline_wire::{OpKind, PacketView};

use super::rig::Rig;
use crate::{FecConfig, FecMode, Params};

fn fixed(r: u8, c: u8) -> FecConfig {
    FecConfig::new(FecMode::Fixed(Params::new(r, c).unwrap()))
}

/// Whether a packet carries data that is coded.
pub(super) fn is_data(packet: &PacketView<'_>) -> bool {
    !matches!(packet.info().kind, OpKind::Ack | OpKind::Cnp | OpKind::Repair)
}

const LEN: usize = 20_000;

/// Posts one message of each kind from end 0.
fn post_all(rig: &mut Rig) {
    rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, LEN);
    rig.post(0, 2, SendOp::SendImm(7), 0, LEN + 1);
    rig.post(0, 3, SendOp::Read(rig.remote(1, 300_000)), 200_000, LEN + 2);
    rig.post(0, 4, SendOp::WriteImm(rig.remote(1, 50_000), 8), 100_000, 5);
    rig.post(0, 5, SendOp::FetchAdd { remote: rig.remote(1, 400_000), add: 5 }, 240_000, 8);
}

fn check_all(rig: &mut Rig) {
    let wanted: Vec<_> = (1..=5).map(|id| (id, WcStatus::Success)).collect();
    let got = rig.statuses(0);
    assert_eq!(got.into_iter().filter(|(id, _)| *id < 1_000).collect::<Vec<_>>(), wanted);
    let [a, b] = &rig.ends;
    assert!(b.memory.to_vec(0, LEN) == a.memory.to_vec(100_000, LEN), "WRITE");
    assert!(a.memory.to_vec(200_000, LEN + 2) == b.memory.to_vec(300_000, LEN + 2), "READ");
    assert!(b.memory.to_vec(50_000, 5) == a.memory.to_vec(100_000, 5), "small WRITE");
}

/// Nothing was retransmitted, and the transports saw exactly what was sent.
fn check_unnoticed(rig: &Rig) {
    for (end, peer) in [(0, 1), (1, 0)] {
        assert_eq!(rig.ends[end].nic.counters().retransmitted_packets, 0);
        assert_eq!(rig.ends[end].nic.counters().tx_nak_sequence, 0);
        assert_eq!(rig.ends[end].nic.counters().read_gaps, 0);
        let sent = rig.ends[end].sent.lock().unwrap();
        let seen = rig.ends[peer].seen.lock().unwrap();
        assert!(*sent == *seen, "end {peer} saw {} packets of {}", seen.len(), sent.len());
        assert_eq!(rig.ends[end].pool.used_bytes(), 0);
    }
}

#[test]
fn on_a_clean_link_nothing_is_noticed() {
    for config in [fixed(8, 2), fixed(32, 1), FecConfig::new(FecMode::Off)] {
        let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, config);
        post_all(&mut rig);
        rig.run(|_, _| true);
        check_all(&mut rig);
        check_unnoticed(&rig);
        assert_eq!(rig.ends[1].counters.snapshot().held, 0);
        let coded = config.mode != FecMode::Off;
        assert_eq!(rig.ends[0].counters.snapshot().repairs_sent > 0, coded);
    }
}

/// The QP keeps a short WRITE whole: split into single-packet WRITEs it would cost a repair each.
#[test]
fn a_short_write_costs_the_repairs_of_one_block() {
    for (r, c, repairs) in [(32, 1, 1), (8, 2, 6)] {
        let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, fixed(r, c));
        rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, LEN);
        rig.run(|_, _| true);
        assert_eq!(rig.statuses(0), [(1, WcStatus::Success)]);
        assert_eq!(rig.ends[0].counters.snapshot().repairs_sent, repairs, "({r}, {c})");
    }
}

#[test]
fn any_single_loss_is_repaired_before_the_transport_sees_it() {
    for (r, c) in [(8, 2), (32, 1), (64, 8), (1, 1)] {
        for direction in 0..2 {
            for lost in 0.. {
                let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, fixed(r, c));
                post_all(&mut rig);
                let mut count = 0;
                rig.run(|from, packet| {
                    let counts = from == direction && is_data(packet);
                    count += u32::from(counts);
                    !(counts && count == lost + 1)
                });
                if count <= lost {
                    break;
                }
                check_all(&mut rig);
                check_unnoticed(&rig);
                let counters = rig.ends[1 - direction].counters.snapshot();
                assert_eq!(counters.recovered, 1, "FEC({r}, {c}), packet {lost}: {counters:?}");
            }
        }
    }
}

#[test]
fn a_burst_of_as_many_packets_as_there_are_lanes_is_repaired() {
    for start in 0..16 {
        let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, fixed(16, 4));
        rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, 100 * 1024);
        let mut count = 0;
        rig.run(|from, packet| {
            let counts = from == 0 && is_data(packet);
            count += u32::from(counts);
            !(counts && (start + 16..start + 20).contains(&count))
        });
        check_unnoticed(&rig);
        assert_eq!(rig.ends[1].counters.snapshot().recovered, 4);
    }
}

#[test]
fn what_cannot_be_repaired_is_left_to_go_back_n() {
    let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, fixed(16, 1));
    rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, 100 * 1024);
    let mut count = 0;
    rig.run(|from, packet| {
        count += u32::from(from == 0 && is_data(packet));
        !(from == 0 && is_data(packet) && (count == 20 || count == 23))
    });
    assert_eq!(rig.statuses(0), [(1, WcStatus::Success)]);
    let [a, b] = &rig.ends;
    assert!(b.memory.to_vec(0, 100 * 1024) == a.memory.to_vec(100_000, 100 * 1024));
    assert_eq!(b.nic.counters().tx_nak_sequence, 1);
    let counters = b.counters.snapshot();
    assert_eq!((counters.recovered, counters.given_up, counters.unrecoverable), (0, 1, 2));
    assert_eq!(b.pool.used_bytes(), 0);
}

#[test]
fn repair_goes_on_after_the_transport_went_back() {
    let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, fixed(16, 1));
    rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, 100 * 1024);
    let mut count = 0;
    rig.run(|from, packet| {
        count += u32::from(from == 0 && is_data(packet));
        !(from == 0 && is_data(packet) && matches!(count, 20 | 23 | 110 | 130 | 150 | 170))
    });
    let [a, b] = &rig.ends;
    assert!(b.memory.to_vec(0, 100 * 1024) == a.memory.to_vec(100_000, 100 * 1024));
    assert_eq!(b.nic.counters().tx_nak_sequence, 1);
    assert_eq!(b.counters.snapshot().recovered, 4);
}

#[test]
fn an_unreliable_connection_is_repaired_too() {
    let mut rig = Rig::acquainted(QpType::Uc, Mtu::B1024, fixed(8, 2));
    for id in 0..4 {
        rig.post(0, id, SendOp::WriteImm(rig.remote(1, 0), 3), 100_000, 30_000);
    }
    let mut count = 0;
    rig.run(|from, packet| {
        count += u32::from(from == 0 && is_data(packet));
        !(from == 0 && is_data(packet) && count % 17 == 3)
    });
    assert_eq!(rig.statuses(1).len(), 4);
    assert!(rig.ends[1].counters.snapshot().recovered >= 6);
    assert_eq!(rig.ends[1].nic.counters().drop_message, 0);
    assert_eq!(rig.ends[1].pool.used_bytes(), 0);
}

#[test]
fn a_message_of_an_unreliable_connection_that_cannot_be_repaired_is_dropped_alone() {
    let mut rig = Rig::acquainted(QpType::Uc, Mtu::B1024, fixed(8, 1));
    for id in 0..4 {
        rig.post(0, id, SendOp::WriteImm(rig.remote(1, 0), 3), 100_000, 8 * 1024);
    }
    let mut count = 0;
    rig.run(|from, packet| {
        count += u32::from(from == 0 && is_data(packet));
        !(from == 0 && is_data(packet) && (count == 10 || count == 12))
    });
    assert_eq!(rig.statuses(1).len(), 3);
}

#[test]
fn a_peer_without_the_shim_gets_no_repairs_and_works() {
    for end in 0..2 {
        let mut configs = [None, None];
        configs[end] = Some(fixed(32, 1));
        let mut rig = Rig::new(QpType::Rc, Mtu::B1024, configs);
        post_all(&mut rig);
        let mut strange = 0;
        let mut count = 0;
        rig.run(|_, packet| {
            strange += u32::from(packet.info().kind == OpKind::Repair);
            count += 1;
            count % 50 != 49
        });
        check_all(&mut rig);
        assert_eq!(strange, 0);
        assert_eq!(rig.ends[end].counters.snapshot().peers_found, 0);
    }
}

#[test]
fn the_code_can_be_used_in_one_direction_only() {
    let configs = [Some(fixed(32, 1)), Some(FecConfig::new(FecMode::Off))];
    let mut rig = Rig::new(QpType::Rc, Mtu::B1024, configs);
    rig.run(|_, _| true);
    post_all(&mut rig);
    let mut count = 0;
    rig.run(|from, packet| {
        count += u32::from(from == 0 && is_data(packet));
        !(from == 0 && is_data(packet) && count == 5)
    });
    check_all(&mut rig);
    check_unnoticed(&rig);
    assert_eq!(rig.ends[1].counters.snapshot().recovered, 1);
    assert_eq!(rig.ends[1].counters.snapshot().repairs_sent, 0);
}

#[test]
fn automatic_fec_starts_with_losses_and_ends_without() {
    let config = FecConfig::new("auto".parse().unwrap());
    let mut rig = Rig::acquainted(QpType::Rc, Mtu::B1024, config);
    let mut sent = [0; 3];
    for (phase, lossy) in [false, true, false].into_iter().enumerate() {
        let start = rig.now;
        let mut count = 0;
        while rig.now.nanos_since(start) < 3_000_000_000 {
            let before = rig.ends[0].counters.snapshot().repairs_sent;
            rig.post(0, 1, SendOp::Write(rig.remote(1, 0)), 100_000, 300 * 1024);
            rig.run(|from, packet| {
                count += u32::from(from == 0 && is_data(packet));
                !(lossy && from == 0 && is_data(packet) && count % 500 == 499)
            });
            rig.statuses(0);
            rig.now = rig.now.plus_nanos(10_000_000);
            if rig.now.nanos_since(start) > 2_000_000_000 {
                sent[phase] += rig.ends[0].counters.snapshot().repairs_sent - before;
            }
        }
    }
    assert_eq!(sent[0], 0);
    assert!(sent[1] > 0);
    assert_eq!(sent[2], 0);
    assert!(rig.ends[1].counters.snapshot().recovered > 0);
}
