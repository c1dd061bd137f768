//! The link's model by its statistics, the profile's text form, and the middleware in memory.

use std::net::IpAddr;
use std::time::Duration;

use bowline_nic::{FrameMeta, Time, TxBatch};
use bowline_wire::{Bth, FlowKey};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Fate, Impair, Link, LinkProfile, Loss};
use crate::memory_port::{MemoryHub, MemoryPort};
use crate::port::Port;
use crate::testing::{icrc_is_right, push_packets};

fn profile(text: &str) -> LinkProfile {
    text.parse().expect("a right profile")
}

/// The fates of `count` packets of `len` bytes, one every `gap_ns`.
fn fates(text: &str, count: usize, len: usize, gap_ns: u64) -> Vec<Fate> {
    let profile = profile(text);
    let mut rng = ChaCha8Rng::seed_from_u64(profile.seed);
    let mut link = Link::new(profile);
    (0..count).map(|i| link.admit(Time::from_nanos(i as u64 * gap_ns), len, &mut rng)).collect()
}

fn arrivals(fates: &[Fate]) -> Vec<Time> {
    fates
        .iter()
        .filter_map(|f| match f {
            Fate::Arrives { at, .. } => Some(*at),
            _ => None,
        })
        .collect()
}

fn share(fates: &[Fate], which: impl Fn(&Fate) -> bool) -> f64 {
    fates.iter().filter(|f| which(f)).count() as f64 / fates.len() as f64
}

#[test]
fn a_perfect_link_does_nothing() {
    let fates = fates("", 1000, 4096, 10);
    let perfect = |(i, f): (usize, &Fate)| {
        *f == Fate::Arrives {
            at: Time::from_nanos(i as u64 * 10),
            duplicate: false,
            corrupt_bit: None,
            reordered: false,
        }
    };
    assert!(fates.iter().enumerate().all(perfect));
}

#[test]
fn independent_loss_is_as_frequent_as_asked_for() {
    let lost = share(&fates("loss=1%,seed=3", 200_000, 1000, 0), |f| *f == Fate::Lost);
    assert!((0.009..0.011).contains(&lost), "{lost}");
}

#[test]
fn bursts_of_loss_are_as_long_and_as_rare_as_asked_for() {
    let fates = fates("loss=ge(0.001,0.1),seed=5", 500_000, 1000, 0);
    let lost = share(&fates, |f| *f == Fate::Lost);
    // In the long run bad for p / (p + r) of the time.
    assert!((0.007..0.013).contains(&lost), "{lost}");
    let starts = fates.windows(2).filter(|w| w[0] != Fate::Lost && w[1] == Fate::Lost).count();
    let length = lost * fates.len() as f64 / starts as f64;
    assert!((8.0..12.0).contains(&length), "{length}");
}

#[test]
fn a_rate_spaces_packets_and_delay_moves_them() {
    // 1250 bytes at 1 Gbit/s take 10 µs.
    let at = arrivals(&fates("rate=1Gbps,delay=5ms", 100, 1250, 0));
    assert_eq!(at[0], Time::from_micros(5_010));
    assert!(at.windows(2).all(|w| w[1].nanos_since(w[0]) == 10_000));
}

#[test]
fn a_full_queue_drops_the_tail() {
    let fates = fates("rate=1Gbps,queue=125000B", 1000, 1250, 0);
    assert_eq!(share(&fates, |f| *f == Fate::QueueFull), 0.9);
    assert!(fates[..100].iter().all(|f| *f != Fate::QueueFull));
}

#[test]
fn jitter_varies_the_delay_without_reordering() {
    let at = arrivals(&fates("delay=10ms,jitter=2ms,seed=1", 10_000, 1000, 1_000_000));
    assert!(at.is_sorted());
    let delays: Vec<u64> =
        at.iter().enumerate().map(|(i, t)| t.as_nanos() - i as u64 * 1_000_000).collect();
    assert!(delays.iter().all(|d| (8_000_000..=12_000_000).contains(d)));
    assert!(delays.iter().any(|d| *d < 9_500_000) && delays.iter().any(|d| *d > 11_500_000));
}

#[test]
fn reordering_duplication_and_corruption_are_as_frequent_as_asked_for() {
    let fates = fates("delay=1ms,reorder=2%,duplicate=3%,corrupt=4%,seed=9", 100_000, 1000, 10_000);
    let arrives = |want: fn(bool, bool, bool) -> bool| {
        share(&fates, |f| match f {
            Fate::Arrives { duplicate, corrupt_bit, reordered, .. } => {
                want(*reordered, *duplicate, corrupt_bit.is_some())
            }
            _ => false,
        })
    };
    assert!((0.018..0.022).contains(&arrives(|r, _, _| r)));
    assert!((0.028..0.032).contains(&arrives(|_, d, _| d)));
    assert!((0.038..0.042).contains(&arrives(|_, _, c| c)));
    assert!(!arrivals(&fates).is_sorted());
}

#[test]
fn a_seed_repeats_its_course() {
    let text = "loss=5%,jitter=1ms,delay=2ms,duplicate=5%,seed=42";
    assert_eq!(fates(text, 1000, 500, 7), fates(text, 1000, 500, 7));
    assert_ne!(fates(text, 1000, 500, 7), fates("loss=5%,seed=43", 1000, 500, 7));
}

#[test]
fn a_profile_reads_as_written() {
    let text = "loss=0.1%,delay=10ms,jitter=1ms,rate=1Gbps,reorder=1%,duplicate=1%,\
                corrupt=0.01%,queue=8MiB,seed=7";
    let p = profile(text);
    assert_eq!(p.loss, Loss::Iid(0.001));
    assert_eq!(p.delay, Duration::from_millis(10));
    assert_eq!(p.rate_bps, Some(1_000_000_000));
    assert_eq!(p.queue_limit_bytes, 8 << 20);
    assert_eq!(p.seed, 7);
    assert_eq!(profile(&p.to_string()), p);
    let bursty = profile(" loss=ge(0.1%, 20%, 90%, 0.01%) , rate=2.5Gbps,delay=1.5us");
    assert_eq!(profile(&bursty.to_string()), bursty);
    assert_eq!(profile(""), LinkProfile::default());
    assert_eq!(LinkProfile::default().to_string(), "");
}

#[test]
fn a_queue_may_be_written_in_round_trips_at_full_rate() {
    // 1 Gbit/s for 40 ms.
    assert_eq!(profile("queue=1bdp,rate=1gbit,delay=20ms").queue_limit_bytes, 5_000_000);
    assert_eq!(profile("rate=1Gbps,delay=20ms,queue=0.5bdp").queue_limit_bytes, 2_500_000);
}

#[test]
fn what_is_wrong_in_a_profile_is_named() {
    for (text, names) in [
        ("loss=101%", "loss=101%"),
        ("los=1%", "`los`"),
        ("delay=10", "delay=10"),
        ("delay=-1ms", "delay=-1ms"),
        ("rate=0bps", "rate=0bps"),
        ("rate=fast", "rate=fast"),
        ("queue=8", "queue=8"),
        ("delay=1ms,queue=1bdp", "takes a rate"),
        ("queue=xbdp,rate=1Gbps,delay=1ms", "queue=xbdp"),
        ("loss=ge(1%)", "ge(p,r)"),
        ("loss=ge(1%,2%", "loss=ge(1%,2%"),
        ("delay=1ms,seed", "`seed`"),
        ("loss=nan", "loss=nan"),
    ] {
        let error = text.parse::<LinkProfile>().expect_err(text).to_string();
        assert!(error.contains(names), "{error}");
        assert!(error.contains("loss=0.1%,delay=10ms"), "{error}");
    }
}

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
        Rig { a: Impair::new(a, profile(text)), b, key, now: Time::ZERO }
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
fn packets_arrive_in_order_resealed_and_at_their_time() {
    let mut rig = Rig::new("delay=10ms,rate=1Gbps");
    rig.send(0, &[4096; 100]);
    let (psns, broken) = rig.drain();
    assert_eq!((psns, broken), ((0..100).collect(), 0));
    let took = rig.now.nanos_since(Time::ZERO);
    // 100 packets of 4140 bytes at 1 Gbit/s, and the delay.
    assert!((13_300_000..13_450_000).contains(&took), "{took}");
    assert!(rig.a.counters().impair_max_lateness_ns <= 100_000, "{:?}", rig.a.counters());
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
