//! For any link and message, the result is a valid distribution.

use bowline_plan::{Coding, Erasure, GilbertElliott, Link, Loss, Message, Scheme, Transfer};
use proptest::prelude::*;

fn log_uniform(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (libm::log(low)..libm::log(high)).prop_map(libm::exp)
}

fn losses() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::Packet(0.0)),
        log_uniform(1e-12, 0.3).prop_map(Loss::Packet),
        log_uniform(1e-12, 0.999).prop_map(Loss::Chunk),
        (log_uniform(1e-9, 0.05), 1.0..200.0_f64)
            .prop_map(|(rate, burst)| Loss::Bursts(GilbertElliott::bursts(rate, burst))),
    ]
}

fn schemes() -> impl Strategy<Value = Scheme> {
    let coded = (1_u32..128, 1_u32..128, 0.0..3.0_f64, 0.0..5.0_f64, any::<bool>()).prop_map(
        |(k, m, beta, rto_rtts, mds)| {
            let (coding, m) = if mds { (Coding::Mds, m) } else { (Coding::Xor, m.min(k)) };
            Scheme::Erasure(Erasure { coding, k, m, beta, rto_rtts })
        },
    );
    prop_oneof![
        Just(Scheme::GoBackN),
        Just(Scheme::BestEffort),
        (0.0..6.0_f64).prop_map(|rto_rtts| Scheme::SelectiveRepeat { rto_rtts }),
        (1_u32..=16, 0_u32..=112).prop_map(|(c, more)| Scheme::Lowar { r: c + more, c }),
        coded,
    ]
}

proptest! {
    #[test]
    fn a_law_is_one(
        bandwidth_bps in log_uniform(1e6, 1e13),
        rtt_s in log_uniform(1e-6, 2.0),
        loss in losses(),
        bytes in log_uniform(1.0, 2_f64.powi(44)),
        packets in 1_u64..64,
        scheme in schemes(),
    ) {
        let link = Link { bandwidth_bps, rtt_s, loss };
        let message = Message::new(bytes as u64).with_chunk(packets * 4096);
        // Losses that leave nothing to plan are rejected.
        let Ok(transfer) = Transfer::new(link, message) else { return Ok(()) };
        let law = transfer.completion(&scheme).unwrap();
        let (least_s, mean_s) = (law.least_s(), law.mean_s());
        prop_assert!(least_s.is_finite() && mean_s.is_finite());
        let ideal_s = message.bytes as f64 * 8.0 / bandwidth_bps + rtt_s;
        prop_assert!(least_s >= ideal_s * (1.0 - 1e-9), "{least_s} below the ideal {ideal_s}");
        prop_assert!(mean_s >= least_s * (1.0 - 1e-9), "mean {mean_s}, least {least_s}");
        let mut before_s = least_s;
        for q in [0.01, 0.5, 0.9, 0.99, 0.999, 0.999_99] {
            let at_s = law.quantile_s(q);
            prop_assert!(at_s.is_finite() && at_s >= before_s, "{q}: {at_s} after {before_s}");
            prop_assert!(law.cdf(at_s) >= q - 1e-9, "{q}: {} at {at_s}", law.cdf(at_s));
            before_s = at_s;
        }
        prop_assert!(law.cdf(least_s * 0.999) == 0.0);
        // The mean lies within what the quantiles allow, up to the tail that they leave out.
        let most_s = law.quantile_s(0.999_999);
        prop_assert!(mean_s <= most_s * 1.01, "mean {mean_s}, nearly all below {most_s}");
        prop_assert!(law.bandwidth_overhead() >= 0.0);
        prop_assert!((0.0..=1.0 + 1e-12).contains(&law.repair_probability()));
    }
}
