use bowline_collective::timeout::Rule;

use super::*;

fn small(carrier: Carrier, load: f64) -> CollectivesConfig {
    let config = CollectivesConfig::new(Collective::Allreduce, 1 << 20, 4, carrier);
    CollectivesConfig { operations: 10, load, ..config }
}

fn mean_ns(outcome: &CollectivesOutcome) -> f64 {
    outcome.times_ns.iter().sum::<u64>() as f64 / outcome.times_ns.len() as f64
}

#[test]
fn without_bursts_nothing_is_lost_and_the_links_are_full() {
    let sr_nack = Carrier::Sdr(SdrScheme::SrNack);
    for carrier in [Carrier::Rc(8), sr_nack, Carrier::Exact, Carrier::Xp(10_000, Rule::Margin)] {
        let config = CollectivesConfig { bytes: 8 << 20, ..small(carrier, 1e-9) };
        let outcome = collectives(&config).unwrap();
        assert_eq!(outcome.times_ns.len(), 10);
        assert_eq!((outcome.drops, outcome.missing_bytes, outcome.repaired_bytes), (0, 0, 0));
        let slowdown = mean_ns(&outcome) / config.ideal_ns();
        assert!(
            (1.0..1.3).contains(&slowdown),
            "{carrier:?}: {slowdown} {:?} {}",
            outcome.times_ns,
            config.ideal_ns()
        );
    }
}

#[test]
fn bursts_cost_rc_its_timer_and_xp_keeps_its_promise() {
    let config = |carrier| CollectivesConfig {
        bytes: 8 << 20,
        ranks: 8,
        operations: 3,
        ..small(carrier, 0.3)
    };
    let run = |carrier| collectives(&config(carrier)).unwrap();
    let [rc, exact] = [Carrier::Rc(12), Carrier::Exact].map(run);
    let xp = run(Carrier::Xp(10_000, Rule::Margin));
    assert!(rc.drops > 0 && exact.repaired_bytes > 0, "bursts overflow queues");
    assert_eq!(exact.missing_bytes, 0);
    assert!(xp.missing_bytes as f64 <= 0.01 * xp.expected_bytes as f64);
    assert!(2.0 * mean_ns(&xp) < mean_ns(&rc), "{} and {}", mean_ns(&xp), mean_ns(&rc));
}

#[test]
fn the_same_seed_gives_the_same_times() {
    let run = || collectives(&small(Carrier::Xp(10_000, Rule::Margin), 0.3)).unwrap().times_ns;
    assert_eq!(run(), run());
}
