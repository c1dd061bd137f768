//! The statistics of background traffic, and its passage through a network.

#[allow(dead_code, reason = "each test program uses its part")]
mod rig;

use bowline_nic::{Mtu, Time};
use bowline_sim::SimRng;
use bowline_sim::net::{Topology, fat_tree, star};
use bowline_sim::traffic::{Background, Flow, PoissonConfig, PoissonFlows, Sizes, WithBackground};
use rig::{CABLE, Rig};

const TABLE: &str = "# bytes, part of flows\n1000 0.5\n10000 0.9\n\n1000000 1\n";

fn config(sizes: Sizes) -> PoissonConfig {
    PoissonConfig {
        hosts: 16,
        rate_bps: 100_000_000_000,
        load: 0.3,
        sizes,
        start: Time::from_micros(10),
        end: Time::from_millis(10),
    }
}

fn flows(seed: u64, sizes: Sizes) -> Vec<Flow> {
    PoissonFlows::new(seed, config(sizes)).collect()
}

#[test]
fn flows_make_up_the_load_in_a_poisson_process() {
    let flows = flows(1, Sizes::Fixed(10_000));
    let bits: u64 = flows.iter().map(|flow| flow.bytes * 8).sum();
    let load = bits as f64 / (16.0 * 100.0 * 9_990_000.0);
    assert!((load - 0.3).abs() < 0.01, "{load}");
    assert!(flows.is_sorted_by_key(|flow| flow.at));
    // In a Poisson process, the standard deviation of the gaps equals their mean.
    let gaps: Vec<f64> = flows.windows(2).map(|w| w[1].at.nanos_since(w[0].at) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{} of {mean}", variance.sqrt());
}

#[test]
fn every_host_sends_to_every_other_and_none_to_itself() {
    let flows = flows(2, Sizes::Fixed(1_000));
    assert!(flows.iter().all(|flow| flow.from != flow.to));
    let pairs: std::collections::BTreeSet<(usize, usize)> =
        flows.iter().map(|flow| (flow.from.0, flow.to.0)).collect();
    assert_eq!(pairs.len(), 16 * 15);
}

#[test]
fn a_seed_repeats_its_flows() {
    let sizes = Sizes::Uniform { min: 100, max: 5_000 };
    assert_eq!(flows(3, sizes.clone()), flows(3, sizes.clone()));
    assert_ne!(flows(3, sizes.clone()), flows(4, sizes));
}

#[test]
fn sizes_follow_their_distribution() {
    let cdf = Sizes::Cdf(TABLE.parse().expect("a right table"));
    // 0.5 of 1,000, 0.4 of 5,500 on average, 0.1 of 505,000.
    assert!((cdf.mean() - 53_200.0).abs() < 1e-6);
    let rng = &mut SimRng::new(1, 0);
    for sizes in [Sizes::Fixed(700), Sizes::Uniform { min: 500, max: 1_500 }, cdf.clone()] {
        let drawn: Vec<u64> = (0..200_000).map(|_| sizes.draw(rng)).collect();
        let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
        assert!((mean / sizes.mean() - 1.0).abs() < 0.02, "{mean} of {}", sizes.mean());
    }
    let drawn: Vec<u64> = (0..100_000).map(|_| cdf.draw(rng)).collect();
    let part = |bytes| drawn.iter().filter(|d| **d <= bytes).count() as f64 / drawn.len() as f64;
    assert!((part(1_000) - 0.5).abs() < 0.01 && (part(5_500) - 0.7).abs() < 0.01);
    assert!((part(10_000) - 0.9).abs() < 0.01 && part(1_000_000) == 1.0);
}

#[test]
fn what_is_wrong_in_a_table_is_named() {
    for (text, line) in [
        ("", 1),
        ("1000 0.5", 1),
        ("1000 0.5\n2000 0.4", 2),
        ("1000 0.5\n900 1", 2),
        ("a b", 1),
        ("1000 0.5 3\n", 1),
        ("\n1000 1.5\n", 2),
        ("1000 NaN", 1),
    ] {
        let error = text.parse::<bowline_sim::traffic::SizeCdf>().expect_err(text);
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
}

#[test]
fn flows_come_through_a_network_and_runs_repeat() {
    let run = || {
        let addrs = Topology::ipv4(16);
        let mut rig = Rig::new(fat_tree(1, 4, &addrs, CABLE), &addrs);
        let cdf = Sizes::Cdf(TABLE.parse().expect("a right table"));
        let end = Time::from_micros(300);
        let flows = PoissonFlows::new(1, PoissonConfig { end, ..config(cdf) });
        let mut background = Background::new(flows, Mtu::B1024);
        background.start(&mut rig.world);
        rig.world.run_until(&mut background, Time::from_millis(1_000));
        assert!(background.is_finished() && background.started() > 200);
        assert!(background.done().iter().all(|r| r.is_complete && r.end > r.flow.at));
        rig.world.trace_hash()
    };
    assert_eq!(run(), run());
}

#[test]
fn an_application_is_slower_beside_background_traffic() {
    let time = |load: Option<f64>| {
        let addrs = Topology::ipv4(4);
        let mut rig = Rig::new(star(1, &addrs, CABLE), &addrs);
        rig.pair(0, 1, 64 << 10, 20);
        let Some(load) = load else {
            rig.run();
            return rig.world.now();
        };
        let config = PoissonConfig { hosts: 4, load, ..config(Sizes::Fixed(30_000)) };
        let background = Background::new(PoissonFlows::new(5, config), Mtu::B1024);
        let mut both = WithBackground { app: rig.app, background };
        both.background.start(&mut rig.world);
        rig.world.run_until(&mut both, Time::from_millis(1_000));
        assert!(!both.app.failed && both.background.started() > 10);
        rig.world.now()
    };
    let (alone, beside) = (time(None), time(Some(0.6)));
    assert!(beside.as_nanos() * 10 > alone.as_nanos() * 11, "{alone} alone, {beside} beside");
}
