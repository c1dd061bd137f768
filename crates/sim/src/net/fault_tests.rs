use super::fault::{Corruption, GilbertElliott, Loss, LossState, corrupt};
use super::link_tests::packet;
use crate::rng::{Prob, SimRng};

const PACKETS: u64 = 200_000;

fn losses(loss: Loss) -> Vec<bool> {
    let mut rng = SimRng::new(1, 0);
    let mut state = LossState::default();
    (0..PACKETS).map(|_| state.loses(&loss, &mut rng)).collect()
}

fn rate(lost: &[bool]) -> f64 {
    lost.iter().filter(|l| **l).count() as f64 / lost.len() as f64
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
    let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
    let mean = lost.iter().filter(|l| **l).count() as f64 / bursts as f64;
    assert!((mean - 8.0).abs() < 1.0, "{mean}");
}

#[test]
fn corruption_changes_bytes_and_digest() {
    let mut rng = SimRng::new(2, 0);
    for how in [Corruption::OneBit, Corruption::Anything] {
        let mut changed = 0;
        for _ in 0..100 {
            let mut one = packet(300);
            let (bytes, digest) = (one.bytes.clone(), one.digest);
            corrupt(&mut one, how, &mut rng);
            // Two flips may hit the same bit.
            changed += u32::from(one.bytes != bytes);
            assert_ne!(one.digest, digest, "the hash must see that something was tried");
        }
        assert!(changed > 95, "{changed} of 100");
    }
}
