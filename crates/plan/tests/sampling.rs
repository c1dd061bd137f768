//! The distributions compared with random samples, at a few corner cases. `bench/plan/run` has the
//! whole grid.

use bowline_plan::{Link, Loss, Message, Sampler, Scheme, Transfer};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const DRAWS: usize = 20_000;

fn check(bytes: u64, rtt_s: f64, loss: Loss, scheme: Scheme) {
    let link = Link { bandwidth_bps: 400e9, rtt_s, loss };
    let transfer = Transfer::new(link, Message::new(bytes)).unwrap();
    let law = transfer.completion(&scheme).unwrap();
    let sampler = Sampler::new(&transfer, &scheme).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let times = sampler.sorted(DRAWS, &mut rng);
    let what = format!("{bytes} bytes, {rtt_s} s, {loss:?}, {}", scheme.name());
    let mean = times.iter().sum::<f64>() / DRAWS as f64;
    let error = law.mean_s() / mean - 1.0;
    assert!(error.abs() < 0.02, "{what}: mean {} drawn {mean}", law.mean_s());
    // The share of samples up to a quantile matches the distribution, or, at a step, is below it.
    for q in [0.5, 0.99] {
        let at = law.quantile_s(q) * (1.0 + 1e-9);
        let share = times.partition_point(|t| *t <= at) as f64 / DRAWS as f64;
        assert!((share - law.cdf(at)).abs() < 0.012, "{what}: p{q} {share} {}", law.cdf(at));
        assert!(law.cdf(at) >= q && law.cdf(law.quantile_s(q) * (1.0 - 1e-6)) < q, "{what}: {q}");
    }
}

#[test]
fn laws_are_what_drawing_chunk_by_chunk_gives() {
    for scheme in Scheme::all() {
        if !scheme.is_reliable() {
            continue;
        }
        for (bytes, rtt_s) in [(128 << 10, 25e-3), (128 << 20, 25e-3), (8 << 30, 5e-3)] {
            for p in [1e-5, 1e-3, 3e-2, 0.2] {
                check(bytes, rtt_s, Loss::Chunk(p), scheme);
            }
        }
        check(100 * 65536 + 1, 1e-3, Loss::Packet(1e-3), scheme);
    }
}

#[test]
fn two_tebibytes_cost_no_more_than_two_chunks() {
    let loss = Loss::Chunk(1e-3);
    for scheme in
        [Scheme::sr_rto(), Scheme::sr_nack(), Scheme::ec_mds(32, 8), Scheme::ec_xor(32, 8)]
    {
        check(2 << 40, 25e-3, loss, scheme);
    }
}
