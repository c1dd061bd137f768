//! The middleware in memory. The model has its tests in its own crate.

use std::net::IpAddr;

use bowline_nic::{ECN_CE, ECN_ECT0, FrameMeta, Time, TxBatch};
use bowline_wire::{Bth, FlowKey};

use super::{Impair, SharedLink};
use crate::memory_port::{MemoryHub, MemoryPort};
use crate::port::Port;
use crate::testing::{icrc_is_right, push_packets};

/// Two ends in memory, the first behind a link.
struct Rig {
    a: Impair<MemoryPort>,
    b: MemoryPort,
    key: FlowKey,
    now: Time,
}

impl Rig {
    fn new(text: &str) -> Rig {
        let hub = MemoryHub::new();
        let addr = |i: u8| IpAddr::from([10, 0, 0, i]);
        let a = hub.port(addr(1), 4791, 1 << 20).expect("the hub is empty");
        let b = hub.port(addr(2), 4791, 1 << 20).expect("nobody is there");
        let key = FlowKey { src: addr(1), dst: addr(2), src_port: 4791, dst_port: 4791 };
        Rig { a: Impair::new(a, &text.parse().expect("a right profile")), b, key, now: Time::ZERO }
    }

    fn send(&mut self, first_psn: u32, lens: &[usize]) {
        let mut batch = TxBatch::new(self.a.caps().tx, lens.len());
        push_packets(&mut batch, &self.key, 0x01_0002, first_psn, lens);
        let taken = self.a.send(self.now, &batch, 0).expect("memory works");
        assert_eq!(taken, batch.bursts().len());
    }

    /// Runs to the end of what is on the way; the PSNs that arrived whole, and how many did not.
    fn drain(&mut self) -> (Vec<u32>, usize) {
        let (mut psns, mut broken) = (Vec::new(), 0);
        loop {
            self.a.flush(self.now).expect("memory works");
            let got = self
                .b
                .recv(self.now, &mut |meta: &FrameMeta, frame: &[u8]| {
                    if icrc_is_right(meta, 4791, frame) {
                        psns.push(Bth::parse(frame.first_chunk().expect("a BTH")).psn.get());
                    } else {
                        broken += 1;
                    }
                })
                .expect("memory works");
            match self.a.poll_timeout() {
                Some(t) => self.now = self.now.max(t),
                None if got == 0 => return (psns, broken),
                None => {}
            }
        }
    }
}

#[test]
fn packets_arrive_in_order_with_new_icrcs_and_at_their_time() {
    let mut rig = Rig::new("delay=10ms,rate=1Gbps");
    rig.send(0, &[4096; 100]);
    let (psns, broken) = rig.drain();
    assert_eq!((psns, broken), ((0..100).collect(), 0));
    let took = rig.now.nanos_since(Time::ZERO);
    // 100 packets of 4140 bytes at 1 Gbit/s, and the delay.
    assert!((13_300_000..13_450_000).contains(&took), "{took}");
    assert!(rig.a.counters().impair_max_lateness_ns <= 100_000, "{:?}", rig.a.counters());
}

/// Sends packets of 4 KiB at once, and returns how often they leave, the most that leave together,
/// and when the last one does.
fn releases(link: &str, packets: usize) -> (usize, usize, u64) {
    let mut rig = Rig::new(link);
    rig.send(0, &vec![4096; packets]);
    let (mut count, mut most) = (0, 0);
    while let Some(at) = rig.a.poll_timeout() {
        rig.now = at;
        rig.a.flush(rig.now).expect("memory works");
        let got = rig.b.recv(rig.now, &mut |_: &FrameMeta, _: &[u8]| {}).expect("memory works");
        (count, most) = (count + 1, most.max(got));
    }
    (count, most, rig.now.nanos_since(Time::ZERO))
}

#[test]
fn behind_a_queue_packets_leave_in_larger_pieces_and_the_last_on_time() {
    // A packet of 4140 bytes takes 33 us; 300 of them are a queue of 10 ms.
    let (count, most, took) = releases("rate=1Gbps", 300);
    assert!((38..70).contains(&count), "{count} releases");
    assert!((6..=9).contains(&most), "{most} together");
    assert!((9_936_000..9_936_000 + 60_000).contains(&took), "{took}");
    // A short queue is released as it comes.
    let (_, most, took) = releases("rate=1Gbps", 4);
    assert!(most <= 3 && took < 132_480 + 60_000, "{most} together, {took}");
    // At a high rate, no more than a socket takes.
    let (_, most, _) = releases("rate=10Gbps", 1000);
    assert!(most <= 24, "{most} together");
}

#[test]
fn survivors_of_loss_are_whole_whatever_their_place() {
    let mut rig = Rig::new("loss=20%,seed=2");
    for round in 0..50 {
        rig.send(round * 40, &[1024; 40]);
    }
    let (psns, broken) = rig.drain();
    assert_eq!(broken, 0);
    assert!(psns.is_sorted());
    assert_eq!(psns.len() as u64 + rig.a.counters().impair_lost, 2000);
    assert!((1500..1700).contains(&psns.len()));
}

#[test]
fn corruption_is_what_the_icrc_finds() {
    let mut rig = Rig::new("corrupt=10%,seed=2");
    rig.send(0, &[1024; 1000]);
    let (psns, broken) = rig.drain();
    let corrupted = rig.a.counters().impair_corrupted as usize;
    assert!(corrupted > 50);
    assert_eq!(psns.len() + broken, 1000);
    // A flip in the BTH's masked byte is none that the ICRC covers.
    assert!(broken <= corrupted && broken + 5 >= corrupted, "{broken} of {corrupted}");
}

#[test]
fn duplicates_and_reordered_packets_are_whole() {
    let mut rig = Rig::new("duplicate=10%,reorder=10%,rate=1Gbps,delay=1ms,seed=4");
    rig.send(0, &[1024; 500]);
    let (psns, broken) = rig.drain();
    let c = rig.a.counters();
    assert_eq!(broken, 0);
    assert_eq!(psns.len() as u64, 500 + c.impair_duplicated);
    assert!(!psns.is_sorted() && c.impair_reordered > 20);
}

#[test]
fn a_congested_queue_marks_packets_that_can_be_marked() {
    // 1140 bytes each: from the third on a packet finds more than 2 kB.
    let mut rig = Rig::new("rate=1Gbps,ecn=red(2kB,2001B,100%)");
    for tos in [0, 0, 0, ECN_ECT0, ECN_ECT0] {
        let mut plain = TxBatch::new(rig.a.caps().tx, 1);
        push_packets(&mut plain, &rig.key, 0x01_0002, 0, &[1096]);
        let mut batch = TxBatch::new(rig.a.caps().tx, 1);
        batch.push_summed(&rig.key, tos, 0, plain.bytes(&plain.packets(&plain.bursts()[0])[0]));
        rig.a.send(rig.now, &batch, 0).expect("memory works");
    }
    let mut marks = Vec::new();
    while let Some(at) = rig.a.poll_timeout() {
        rig.now = at;
        rig.a.flush(rig.now).expect("memory works");
        rig.b
            .recv(rig.now, &mut |meta: &FrameMeta, _: &[u8]| marks.push(meta.tos & ECN_CE))
            .expect("memory works");
    }
    assert_eq!(marks, [0, 0, 0, ECN_CE, ECN_CE]);
    assert_eq!(rig.a.counters().impair_marked, 2);
}

#[test]
fn ports_on_one_link_share_its_rate_and_count_it_once() {
    let hub = MemoryHub::new();
    let (from, to) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let _sink = hub.port(to, 4791, 1 << 20).expect("nobody is there");
    let link = SharedLink::new(&"rate=1Gbps,delay=10ms".parse().expect("a right profile"));
    let mut lanes: Vec<Impair<MemoryPort>> = (0..2)
        .map(|lane| {
            let port = hub.port_for(from, 4791, lane, 64).expect("nobody is there");
            Impair::over(port, &link, lane == 0)
        })
        .collect();
    let key = FlowKey { src: from, dst: to, src_port: 4791, dst_port: 4791 };
    for lane in &mut lanes {
        let mut batch = TxBatch::new(lane.caps().tx, 100);
        push_packets(&mut batch, &key, 0x01_0002, 0, &[4096; 100]);
        assert_eq!(lane.send(Time::ZERO, &batch, 0).expect("it works"), batch.bursts().len());
    }
    // The second lane's packets are behind the first one's: 200 packets of 4140 bytes.
    let mut now = Time::ZERO;
    while let Some(at) = lanes[1].poll_timeout() {
        now = now.max(at);
        lanes[1].flush(now).expect("memory works");
    }
    let took = now.nanos_since(Time::ZERO);
    assert!((16_600_000..16_750_000).contains(&took), "{took}");
}
