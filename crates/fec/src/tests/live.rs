//! Memory that its owner writes while it is sent: what arrives, and what is repaired, is what was
//! on the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bowline_nic::{Buffer, Mtu, QpType, SendOp, WcStatus};
use bowline_wire::{FlowKey, ICRC_LEN, PacketView, ROCE_UDP_PORT, icrc_of};

use super::repair::is_data;
use super::rig::Rig;
use crate::{FecConfig, FecMode, Params};

/// Where messages come from, at either end.
const SOURCE: usize = 100_000;
/// Long enough for runs of whole packets, with a tail.
const LONG: usize = 20_003;
const ROUNDS: u64 = 12;

/// Calls `f` while another thread writes the sources of both ends.
fn while_written(rig: &mut Rig, f: impl FnOnce(&mut Rig)) {
    let memories: Vec<Arc<Buffer>> = rig.ends.iter().map(|end| end.memory.clone()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                for memory in &memories {
                    memory.fill(SOURCE, LONG + 8, value);
                }
            }
        });
        // Ends the other thread even if `f` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        f(rig);
    });
}

/// Messages of all kinds and lengths; returns how many.
fn post(rig: &mut Rig, qp_type: QpType, first_id: u64) -> u64 {
    let lens = [LONG, 1, 24, 31, 1024, 5000];
    let mut id = first_id;
    for len in lens {
        let mut ops = vec![SendOp::Write(rig.remote(1, 0)), SendOp::SendImm(7)];
        if qp_type == QpType::Rc {
            ops.push(SendOp::Read(rig.remote(1, SOURCE)));
        }
        for op in ops {
            let at = if matches!(op, SendOp::Read(_)) { 300_000 } else { SOURCE };
            rig.post(0, id, op, at, len);
            id += 1;
        }
    }
    id - first_id
}

/// Every frame's ICRC must be that of its bytes.
fn check_icrc(rig_addrs: [core::net::IpAddr; 2], from: usize, frame: &[u8]) {
    let flow = FlowKey {
        src: rig_addrs[from],
        dst: rig_addrs[1 - from],
        src_port: ROCE_UDP_PORT,
        dst_port: ROCE_UDP_PORT,
    };
    let (body, icrc) = frame[1..].split_last_chunk::<ICRC_LEN>().unwrap();
    let sum = icrc_of(&flow, frame[0].into(), body);
    assert_eq!(sum.to_le_bytes(), *icrc, "a packet with another's ICRC");
}

fn exchange(qp_type: QpType, mtu: Mtu) {
    let config = FecConfig::new(FecMode::Fixed(Params::new(8, 1).unwrap()));
    let mut rig = Rig::acquainted(qp_type, mtu, config);
    while_written(&mut rig, |rig| {
        let addrs = [rig.ends[0].addr, rig.ends[1].addr];
        for round in 0..ROUNDS {
            let posted = post(rig, qp_type, round * 32);
            // One packet of each end is lost, and repaired.
            let mut counts = [0_u64; 2];
            rig.run_flights(|from, frames| {
                let mut through = frames.to_vec();
                through.retain(|frame| {
                    check_icrc(addrs, from, frame);
                    let coded = is_data(&PacketView::parse(&frame[1..]).unwrap());
                    counts[from] += u64::from(coded);
                    !(coded && counts[from] == 3 + round)
                });
                through
            });
            let done = rig.statuses(0);
            let succeeded = done.iter().filter(|(_, status)| *status == WcStatus::Success).count();
            assert_eq!(succeeded as u64, posted, "{done:?}");
            rig.statuses(1);
            rig.ends[1].post_receives(6);
        }
    });
    let recovered = rig.ends[1].counters.snapshot().recovered;
    assert!(recovered >= ROUNDS / 2, "{recovered} packets were repaired");
    for (end, peer) in [(0, 1), (1, 0)] {
        assert_eq!(rig.ends[end].nic.counters().drop_icrc, 0);
        let sent = rig.ends[end].sent.lock().unwrap();
        let seen = rig.ends[peer].seen.lock().unwrap();
        // Unless something was retransmitted, both transports saw the same packets.
        if rig.ends[end].nic.counters().retransmitted_packets == 0 && qp_type == QpType::Rc {
            assert!(*sent == *seen, "what end {peer} saw is not what was sent");
        }
        for packet in seen.iter() {
            assert!(sent.contains(packet), "end {peer} saw a packet that nobody sent");
        }
    }
}

#[test]
fn what_is_repaired_is_what_was_on_the_wire() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
            exchange(qp_type, mtu);
        }
    }
}
