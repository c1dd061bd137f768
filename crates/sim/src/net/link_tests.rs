use bowline_nic::{ECN_CE, ECN_ECT0, Time};

use super::fault::{Faults, Loss};
use super::link::{Ecn, Fate, Link, LinkConfig};
use super::topology::Topology;
use crate::packet::Packet;
use crate::rng::{Prob, SimRng};

const GIGABIT: LinkConfig =
    LinkConfig { bandwidth_bps: 1_000_000_000, delay_ns: 10_000, queue_bytes: 1 << 20, ecn: None };

pub(super) fn packet(len: usize) -> Packet {
    let addrs = Topology::ipv4(2);
    let mut packet = Packet {
        bytes: vec![0x5a; len],
        src: addrs[0],
        dst: addrs[1],
        src_port: 4791,
        dst_port: 4791,
        tos: ECN_ECT0,
        ttl: 64,
        ip_id: 0,
        digest: 0,
    };
    packet.seal();
    packet
}

fn link(config: LinkConfig) -> Link {
    Link::new(config, SimRng::new(3, 0))
}

fn arrival(fate: Fate) -> Option<Time> {
    match fate {
        Fate::Arrives { at, .. } => Some(at),
        Fate::Lost | Fate::QueueDrop => None,
    }
}

#[test]
fn packets_leave_at_the_rate_and_arrive_after_the_delay() {
    let mut link = link(GIGABIT);
    let wire_bits = u64::from(packet(1000).wire_len()) * 8;
    for n in 1..=10 {
        let at = arrival(link.send(Time::ZERO, &mut packet(1000)));
        // One bit takes one nanosecond.
        assert_eq!(at, Some(Time::from_nanos(n * wire_bits + 10_000)));
    }
}

#[test]
fn a_full_queue_drops_the_tail_and_drains_with_time() {
    let mut link = link(LinkConfig { queue_bytes: 4 * packet(1000).wire_len(), ..GIGABIT });
    for _ in 0..4 {
        assert!(arrival(link.send(Time::ZERO, &mut packet(1000))).is_some());
    }
    assert_eq!(link.send(Time::ZERO, &mut packet(1000)), Fate::QueueDrop);
    let one_left = Time::from_nanos(u64::from(packet(1000).wire_len()) * 8);
    assert_eq!(link.queued_bytes(one_left), 3 * packet(1000).wire_len());
    assert!(arrival(link.send(one_left, &mut packet(1000))).is_some());
    assert_eq!(link.stats().queue_drops, 1);
    assert_eq!(link.stats().queue_peak_bytes, 4 * packet(1000).wire_len());
}

#[test]
fn marking_follows_the_queue() {
    let ecn = Ecn { kmin_bytes: 20_000, kmax_bytes: 60_000, pmax: Prob::new(0.5) };
    let mut marked = [(0, 0); 3];
    for seed in 0..200 {
        let mut link = Link::new(LinkConfig { ecn: Some(ecn), ..GIGABIT }, SimRng::new(seed, 0));
        loop {
            let queued = link.queued_bytes(Time::ZERO);
            if queued > 80_000 {
                break;
            }
            let mut one = packet(1000);
            link.send(Time::ZERO, &mut one);
            let band = if queued <= 20_000 {
                0
            } else if queued < 60_000 {
                1
            } else {
                2
            };
            marked[band].0 += u32::from(one.tos & ECN_CE == ECN_CE);
            marked[band].1 += 1;
        }
    }
    assert_eq!(marked[0].0, 0, "never below Kmin");
    assert_eq!(marked[2].0, marked[2].1, "always above Kmax");
    let between = f64::from(marked[1].0) / f64::from(marked[1].1);
    assert!((between - 0.25).abs() < 0.03, "half of Pmax on average: {between}");
}

#[test]
fn packets_that_cannot_be_marked_are_not() {
    let ecn = Ecn { kmin_bytes: 0, kmax_bytes: 1, pmax: Prob::ALWAYS };
    let mut link = link(LinkConfig { ecn: Some(ecn), ..GIGABIT });
    for _ in 0..10 {
        let mut one = packet(100);
        one.tos = 0;
        link.send(Time::ZERO, &mut one);
        assert_eq!(one.tos, 0);
    }
}

#[test]
fn a_link_that_is_down_loses_everything() {
    let mut link = link(GIGABIT);
    link.set_up(false);
    assert_eq!(link.send(Time::ZERO, &mut packet(100)), Fate::Lost);
    link.set_up(true);
    assert!(arrival(link.send(Time::ZERO, &mut packet(100))).is_some());
}

#[test]
fn jitter_keeps_the_order_and_reordering_does_not() {
    let send_many = |faults| {
        let mut link = link(GIGABIT);
        link.set_faults(faults);
        let times = (0..1_000).filter_map(|_| arrival(link.send(Time::ZERO, &mut packet(100))));
        let times: Vec<Time> = times.collect();
        times.windows(2).filter(|w| w[1] < w[0]).count()
    };
    assert_eq!(send_many(Faults { jitter_ns: 50_000, ..Faults::default() }), 0);
    let reorder = Faults { reorder: Prob::new(0.1), reorder_ns: 20_000, ..Faults::default() };
    assert!(send_many(reorder) > 50);
}

#[test]
fn loss_and_duplication_are_counted() {
    let mut link = link(LinkConfig { queue_bytes: u32::MAX, ..GIGABIT });
    let loss = Loss::Iid(Prob::new(0.1));
    link.set_faults(Faults {
        loss,
        duplicate: Prob::new(0.2),
        reorder_ns: 1_000,
        ..Faults::default()
    });
    let (mut lost, mut copies) = (0, 0);
    for _ in 0..10_000 {
        match link.send(Time::ZERO, &mut packet(10)) {
            Fate::Lost => lost += 1,
            Fate::Arrives { copy_at, .. } => copies += u64::from(copy_at.is_some()),
            Fate::QueueDrop => unreachable!("the queue has no limit"),
        }
    }
    assert_eq!((link.stats().lost, link.stats().duplicated), (lost, copies));
    assert!((900..1_100).contains(&lost), "{lost}");
    assert!((1_650..1_950).contains(&copies), "{copies}");
}
