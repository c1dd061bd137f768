//! Incast and fairness, small.

use bowline_link::{Ecn, Prob};
use bowline_nic::{DcqcnParams, EqdsParams, SwiftParams};

use super::*;

const LINE: u64 = 100_000_000_000;

fn cable() -> LinkConfig {
    let ecn = Ecn { kmin_bytes: 100_000, kmax_bytes: 400_000, pmax: Prob::new(0.2) };
    LinkConfig { rate_bps: Some(LINE), delay_ns: 500, queue_bytes: 4 << 20, ecn: Some(ecn) }
}

fn incast(senders: usize, transport: QpType, control: RateControl) -> (f64, f64, FlowsOutcome) {
    let flow = |from| FlowPlan { from, to: 0, bytes: Some(1 << 20), start_ns: 0 };
    let outcome = flows(&FlowsConfig {
        seed: 1,
        shape: Shape::Star(vec![500; senders + 1]),
        cable: cable(),
        transport,
        control,
        flows: (1..=senders).map(flow).collect(),
        end_ns: 1_000_000_000,
        sample_ns: 10_000_000,
    });
    let took: Vec<f64> =
        outcome.completed_ns.iter().map(|ns| ns.expect("it completes") as f64).collect();
    let last = took.iter().copied().fold(0.0, f64::max);
    let share = senders as f64 * f64::from(8 << 20) / (last * LINE as f64 / 1e9);
    let rates: Vec<f64> = took.iter().map(|ns| 1.0 / ns).collect();
    (share, jain(&rates), outcome)
}

#[test]
fn swift_and_eqds_hold_incast() {
    let controls =
        [RateControl::Swift(SwiftParams::default()), RateControl::Eqds(EqdsParams::new(LINE))];
    for (transport, control) in
        [QpType::Rc, QpType::Xp].into_iter().flat_map(|t| controls.iter().map(move |c| (t, c)))
    {
        let (share, jain, outcome) = incast(32, transport, control.clone());
        let what = format!("{control} over {transport:?}: {share} of the link, Jain {jain}");
        assert!(share >= 0.9 && jain >= 0.95, "{what}");
        assert_eq!(outcome.drops, 0, "{what}");
    }
}

/// Jain's index of long flows in the second half of 60 ms. They start one after the other,
/// `apart_ns` apart.
fn fairness(transport: QpType, control: RateControl, delays: &[u64], apart_ns: u64) -> f64 {
    let flow = |from| FlowPlan { from, to: 0, bytes: None, start_ns: from as u64 * apart_ns };
    let outcome = flows(&FlowsConfig {
        seed: 1,
        shape: Shape::Star([&[500], delays].concat()),
        cable: cable(),
        transport,
        control,
        flows: (1..=delays.len()).map(flow).collect(),
        end_ns: 60_000_000,
        sample_ns: 2_000_000,
    });
    outcome.jain(15)
}

#[test]
fn dcqcn_converges_to_fair_shares() {
    let control = RateControl::Dcqcn(DcqcnParams::new(LINE));
    let jain = fairness(QpType::Rc, control, &[500; 4], 1_000_000);
    assert!(jain > 0.95, "{jain}");
}

#[test]
fn swift_converges_to_fair_shares() {
    let mut found = Vec::new();
    for delays in [&[1_000; 2][..], &[1_000; 4], &[1_000; 8]] {
        for transport in [QpType::Rc, QpType::Xp] {
            // How long it takes depends on when each begins.
            let mut jain = [900_000, 950_000, 1_000_000, 1_050_000, 1_100_000].map(|apart_ns| {
                fairness(transport, RateControl::Swift(SwiftParams::default()), delays, apart_ns)
            });
            jain.sort_by(f64::total_cmp);
            found.push((transport, delays, jain));
        }
    }
    let is_fair = |jain: &[f64; 5]| jain[0] > 0.8 && jain[2] > 0.88;
    assert!(found.iter().all(|(_, _, jain)| is_fair(jain)), "{found:#?}");
}
