use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::loss::LossState;
use crate::{Bursts, GilbertElliott, Loss, Prob};

const PACKETS: u64 = 200_000;

fn losses(loss: Loss) -> Vec<bool> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut state = LossState::default();
    (0..PACKETS).map(|_| state.loses(&loss, &mut rng)).collect()
}

fn rate(lost: &[bool]) -> f64 {
    lost.iter().filter(|l| **l).count() as f64 / lost.len() as f64
}

/// Losses in a row, on average.
fn burst_len(lost: &[bool]) -> f64 {
    let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
    lost.iter().filter(|l| **l).count() as f64 / bursts as f64
}

#[test]
fn independent_loss_has_its_rate() {
    let measured = rate(&losses(Loss::Iid(Prob::new(0.01))));
    assert!((measured - 0.01).abs() < 0.001, "{measured}");
    assert_eq!(rate(&losses(Loss::None)), 0.0);
    assert_eq!(rate(&losses(Loss::Iid(Prob::ALWAYS))), 1.0);
}

#[test]
fn gilbert_elliott_has_its_rate_and_burst_length() {
    let lost = losses(Loss::GilbertElliott(GilbertElliott::bursts(0.02, 8.0)));
    let measured = rate(&lost);
    assert!((measured - 0.02).abs() < 0.004, "{measured}");
    let mean = burst_len(&lost);
    assert!((mean - 8.0).abs() < 1.0, "{mean}");
}

#[test]
fn bursts_of_one_length_have_it() {
    let model = Bursts { begin: Prob::new(0.001), packets: 8, loss: Prob::ALWAYS };
    let mean = burst_len(&losses(Loss::Bursts(model)));
    // Sometimes one burst follows right after another.
    assert!((8.0..8.3).contains(&mean), "{mean}");
}

#[test]
fn a_probability_is_from_0_to_1() {
    for (p, expected) in [(-1.0, 0.0), (0.25, 0.25), (2.0, 1.0), (f64::NAN, 0.0)] {
        assert_eq!(Prob::new(p).as_f64(), expected);
    }
    assert!(Prob::NEVER < Prob::new(0.1) && Prob::new(0.1) < Prob::ALWAYS);
}
