use proptest::prelude::*;

use crate::{Arrival, Corruption, Ecn, Fate, Faults, Link, LinkConfig, LinkProfile, Prob, Time};

const GIGABIT: LinkConfig =
    LinkConfig { rate_bps: Some(1_000_000_000), delay_ns: 10_000, queue_bytes: 1 << 20, ecn: None };

fn link(config: LinkConfig) -> Link {
    Link::new(config, 3, 0)
}

/// The fates of `count` packets of `len` bytes, one every `gap_ns`.
fn fates(text: &str, count: usize, len: usize, gap_ns: u64) -> Vec<Fate> {
    let profile: LinkProfile = text.parse().expect("a right profile");
    let mut link = Link::from_profile(&profile, 0);
    (0..count).map(|i| link.admit(Time::from_nanos(i as u64 * gap_ns), len, false)).collect()
}

fn arrived(fates: &[Fate]) -> Vec<Arrival> {
    let arrival = |fate: &Fate| match fate {
        Fate::Arrives(arrival) => Some(*arrival),
        _ => None,
    };
    fates.iter().filter_map(arrival).collect()
}

fn times(fates: &[Fate]) -> Vec<Time> {
    arrived(fates).iter().map(|a| a.at).collect()
}

fn share(fates: &[Fate], which: Fate) -> f64 {
    fates.iter().filter(|f| **f == which).count() as f64 / fates.len() as f64
}

#[test]
fn a_perfect_link_does_nothing() {
    for (i, arrival) in arrived(&fates("", 1000, 4096, 10)).into_iter().enumerate() {
        let at = Time::from_nanos(i as u64 * 10);
        let expected =
            Arrival { at, copy_at: None, damage: None, is_reordered: false, is_marked: false };
        assert_eq!(arrival, expected);
    }
}

#[test]
fn packets_leave_at_the_rate_and_arrive_after_the_delay() {
    // 1250 bytes at 1 Gbit/s take 10 µs.
    let at = times(&fates("rate=1Gbps,delay=5ms", 100, 1250, 0));
    assert_eq!(at[0], Time::from_micros(5_010));
    assert!(at.windows(2).all(|w| w[1].nanos_since(w[0]) == 10_000));
}

#[test]
fn rounding_does_not_change_the_rate() {
    // 64 bytes at 400 Gbit/s take 1.28 ns.
    let at = times(&fates("rate=400Gbps", 100_000, 64, 0));
    assert_eq!(at.last(), Some(&Time::from_nanos(128_000)));
}

#[test]
fn a_full_queue_drops_the_tail_and_drains_with_time() {
    let fates = fates("rate=1Gbps,queue=125000B", 1000, 1250, 0);
    assert_eq!(share(&fates, Fate::QueueFull), 0.9);
    assert!(fates[..100].iter().all(|f| *f != Fate::QueueFull));

    let mut link = link(LinkConfig { queue_bytes: 5_000, ..GIGABIT });
    for _ in 0..4 {
        assert!(matches!(link.admit(Time::ZERO, 1_250, false), Fate::Arrives(_)));
    }
    assert_eq!(link.admit(Time::ZERO, 1_250, false), Fate::QueueFull);
    let one_left = Time::from_micros(10);
    assert_eq!(link.queued_bytes(one_left), 3_750);
    assert!(matches!(link.admit(one_left, 1_250, false), Fate::Arrives(_)));
    assert_eq!((link.stats().queue_drops, link.stats().queue_peak_bytes), (1, 5_000));
}

#[test]
fn marking_follows_the_queue_and_spares_packets_that_cannot_be_marked() {
    let ecn = Ecn { kmin_bytes: 20_000, kmax_bytes: 60_000, pmax: Prob::new(0.5) };
    let mut marked = [(0, 0); 3];
    for seed in 0..200 {
        let mut link = Link::new(LinkConfig { ecn: Some(ecn), ..GIGABIT }, seed, 0);
        loop {
            let queued = link.queued_bytes(Time::ZERO);
            if queued > 80_000 {
                break;
            }
            let Fate::Arrives(arrival) = link.admit(Time::ZERO, 1_000, true) else {
                panic!("nothing is lost");
            };
            let band = usize::from(queued > 20_000) + usize::from(queued >= 60_000);
            marked[band].0 += u32::from(arrival.is_marked);
            marked[band].1 += 1;
        }
        let Fate::Arrives(arrival) = link.admit(Time::ZERO, 1_000, false) else {
            panic!("nothing is lost");
        };
        assert!(!arrival.is_marked);
    }
    assert_eq!(marked[0].0, 0, "never below Kmin");
    assert_eq!(marked[2].0, marked[2].1, "always above Kmax");
    let between = f64::from(marked[1].0) / f64::from(marked[1].1);
    assert!((between - 0.25).abs() < 0.03, "half of Pmax on average: {between}");
}

#[test]
fn marking_sees_the_backlog_of_another_queue() {
    let ecn = Ecn { kmin_bytes: 20_000, kmax_bytes: 20_001, pmax: Prob::ALWAYS };
    let mut link = link(LinkConfig { ecn: Some(ecn), ..GIGABIT });
    let marked = |fate| matches!(fate, Fate::Arrives(Arrival { is_marked: true, .. }));
    assert!(!marked(link.transmit(Time::ZERO, 1_000, true, 20_000)));
    assert!(marked(link.transmit(Time::from_millis(1), 1_000, true, 20_001)));
}

#[test]
fn a_link_that_is_down_loses_everything() {
    let mut link = link(GIGABIT);
    link.set_up(false);
    assert_eq!(link.admit(Time::ZERO, 100, false), Fate::Lost);
    link.set_up(true);
    assert!(matches!(link.admit(Time::ZERO, 100, false), Fate::Arrives(_)));
}

#[test]
fn jitter_varies_the_delay_without_reordering() {
    let at = times(&fates("delay=10ms,jitter=2ms,seed=1", 10_000, 1000, 1_000_000));
    assert!(at.is_sorted());
    let delays: Vec<u64> =
        at.iter().enumerate().map(|(i, t)| t.as_nanos() - i as u64 * 1_000_000).collect();
    assert!(delays.iter().all(|d| (8_000_000..=12_000_000).contains(d)));
    assert!(delays.iter().any(|d| *d < 9_500_000) && delays.iter().any(|d| *d > 11_500_000));
}

#[test]
fn reordered_packets_are_held_back_within_bounds_and_others_keep_their_order() {
    let fates = fates("delay=1ms,reorder=10%,hold=100us,seed=2", 10_000, 1000, 10_000);
    let mut late = Vec::new();
    let mut last = Time::ZERO;
    for (i, arrival) in arrived(&fates).into_iter().enumerate() {
        let in_order = Time::from_nanos(i as u64 * 10_000 + 1_000_000);
        if arrival.is_reordered {
            late.push(arrival.at.nanos_since(in_order));
        } else {
            assert!(arrival.at >= last);
            last = arrival.at;
        }
    }
    assert!((900..1_100).contains(&late.len()), "{}", late.len());
    assert!(late.iter().all(|l| (1..=100_000).contains(l)));
    let mean = late.iter().sum::<u64>() / late.len() as u64;
    assert!((45_000..55_000).contains(&mean), "{mean}");
}

#[test]
fn faults_are_as_frequent_as_asked_for_and_counted() {
    let text = "delay=1ms,loss=1%,reorder=2%,duplicate=3%,corrupt=4%,seed=9";
    let profile: LinkProfile = text.parse().expect("a right profile");
    let mut link = Link::from_profile(&profile, 0);
    let fates: Vec<Fate> =
        (0..100_000).map(|i| link.admit(Time::from_micros(10 * i), 1000, false)).collect();
    let all = arrived(&fates);
    let count = |which: fn(&Arrival) -> bool| all.iter().filter(|a| which(a)).count() as u64;
    let lost = fates.len() as u64 - all.len() as u64;
    let found = [
        (lost, link.stats().lost, 1),
        (count(|a| a.is_reordered), link.stats().reordered, 2),
        (count(|a| a.copy_at.is_some()), link.stats().duplicated, 3),
        (count(|a| a.damage.is_some()), link.stats().corrupted, 4),
    ];
    for (seen, counted, percent) in found {
        assert_eq!(seen, counted);
        assert!((percent * 900..percent * 1_100).contains(&seen), "{seen} for {percent} %");
    }
}

#[test]
fn damage_changes_bytes() {
    for how in [Corruption::OneBit, Corruption::Anything] {
        let mut link = link(GIGABIT);
        link.set_faults(Faults { corrupt: Prob::ALWAYS, corruption: how, ..Faults::default() });
        let mut changed = 0;
        for _ in 0..100 {
            let Fate::Arrives(Arrival { damage: Some(damage), .. }) =
                link.admit(Time::ZERO, 300, false)
            else {
                panic!("every packet is corrupted");
            };
            let mut bytes = vec![0x5a; 300];
            damage.apply(&mut bytes);
            let flipped: u32 = bytes.iter().map(|b| (b ^ 0x5a).count_ones()).sum();
            assert!(how == Corruption::Anything || (bytes.len() == 300 && flipped == 1));
            // Two flips may hit the same bit.
            changed += u32::from(flipped > 0 || bytes.len() < 300);
            assert!(damage.bit(300) < 2_400);
        }
        assert!(changed > 95, "{changed} of 100");
        // Nothing to change is no reason to fail.
        link.admit(Time::ZERO, 0, false);
    }
}

#[test]
fn a_seed_repeats_its_course() {
    let text = "loss=5%,jitter=1ms,delay=2ms,duplicate=5%,seed=42";
    assert_eq!(fates(text, 1000, 500, 7), fates(text, 1000, 500, 7));
    assert_ne!(fates(text, 1000, 500, 7), fates("loss=5%,seed=43", 1000, 500, 7));
}

/// Which packets are lost, while others are marked or dropped by a queue.
fn losses(profile: &LinkProfile, gaps_ns: &[u64], can_be_marked: bool) -> Vec<bool> {
    let mut link = Link::from_profile(profile, 1);
    let mut now = Time::ZERO;
    let fate = |gap: &u64| {
        now = now.plus_nanos(*gap);
        link.admit(now, 1_000, can_be_marked)
    };
    let fates = gaps_ns.iter().map(fate).filter(|fate| *fate != Fate::QueueFull);
    fates.map(|fate| fate == Fate::Lost).collect()
}

proptest! {
    /// Whether the n-th packet on the wire is lost depends on seed, stream and n: neither on time,
    /// nor on packets that the queue drops, nor on marks.
    #[test]
    fn losses_depend_on_the_number_of_a_packet_alone(
        seed in any::<u64>(),
        gaps_ns in prop::collection::vec(0..20_000_u64, 1..400),
        bursts in any::<bool>(),
    ) {
        let loss = if bursts { "ge(0.05,0.3)" } else { "20%" };
        let text = format!("loss={loss},jitter=1us,reorder=3%,corrupt=3%,duplicate=3%,seed={seed}");
        let slow = format!("{text},rate=1Gbps,queue=4kB,ecn=red(1kB,3kB,50%)");
        let expected = losses(&text.parse().expect("a profile"), &gaps_ns, false);
        let found = losses(&slow.parse().expect("a profile"), &gaps_ns, true);
        prop_assert_eq!(&found[..], &expected[..found.len()]);
    }
}

#[test]
fn a_link_that_becomes_slower_keeps_what_waits() {
    let mut link = link(GIGABIT);
    // 8 packets of 1250 bytes take 10 µs each.
    for _ in 0..8 {
        link.admit(Time::ZERO, 1250, false);
    }
    let now = Time::from_micros(30);
    link.set_config(now, LinkConfig { rate_bps: Some(100_000_000), ..GIGABIT });
    assert_eq!(link.queued_bytes(now), 5 * 1250);
    let Fate::Arrives(arrival) = link.admit(now, 1250, false) else { panic!("there is room") };
    // Six packets of 100 µs each, and the delay.
    assert_eq!(arrival.at, Time::from_micros(30 + 600 + 10));
}
