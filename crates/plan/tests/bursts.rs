//! Distributions under bursty losses, compared with packets drawn one by one: how good the
//! approximations are.

use bowline_plan::{GilbertElliott, Link, Loss, Message, Scheme, Transfer};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const MESSAGES: usize = 1_200;
const PACKETS_PER_CHUNK: usize = 16;

fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Which of consecutive chunks are lost, packet by packet, starting from equilibrium.
fn lost_chunks(model: &GilbertElliott, chunks: usize, rng: &mut impl Rng) -> Vec<bool> {
    let mut bad = uniform(rng) < model.to_bad / (model.to_bad + model.to_good);
    let mut chunk = || {
        let mut lost = false;
        for _ in 0..PACKETS_PER_CHUNK {
            bad ^= uniform(rng) < if bad { model.to_good } else { model.to_bad };
            lost |= uniform(rng) < if bad { model.loss_bad } else { model.loss_good };
        }
        lost
    };
    (0..chunks).map(|_| chunk()).collect()
}

/// `max X_i`: the first round back to back, every retransmission by itself, a round trip later.
fn repeat_s(
    t: &Transfer,
    model: &GilbertElliott,
    chunks: usize,
    rto_s: f64,
    rng: &mut impl Rng,
) -> f64 {
    let mut last_s = chunks as f64 * t.inject_s();
    for (i, lost) in lost_chunks(model, chunks, rng).into_iter().enumerate() {
        let mut at_s = (i + 1) as f64 * t.inject_s();
        let mut lost = lost;
        while lost {
            at_s += rto_s + t.inject_s();
            lost = lost_chunks(model, 1, rng)[0];
        }
        last_s = last_s.max(at_s);
    }
    last_s
}

#[test]
fn bursts_are_as_drawn_packet_by_packet() {
    // Few long bursts, and many short ones on a link that loses a little all the time.
    let models = [
        GilbertElliott::bursts(2e-4, 24.0),
        GilbertElliott { to_bad: 2e-4, to_good: 0.2, loss_good: 1e-5, loss_bad: 0.5 },
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for model in models {
        let link = Link { bandwidth_bps: 100e9, rtt_s: 10e-3, loss: Loss::Bursts(model) };
        let transfer = Transfer::new(link, Message::new(20 << 20)).unwrap();
        let chunks = transfer.chunks() as usize;
        let mean = |draw: &mut dyn FnMut() -> f64| {
            (0..MESSAGES).map(|_| draw()).sum::<f64>() / MESSAGES as f64
        };
        let drawn = mean(&mut || repeat_s(&transfer, &model, chunks, 30e-3, &mut rng) + 10e-3);
        let law = transfer.completion(&Scheme::sr_rto()).unwrap().mean_s();
        assert!((law / drawn - 1.0).abs() < 0.05, "{model:?}: sr-rto {law} drawn {drawn}");
        for (scheme, xor) in [(Scheme::ec_mds(32, 8), false), (Scheme::ec_xor(32, 8), true)] {
            let groups = chunks / 32;
            let failed = mean(&mut || {
                let fails = |lost: &[bool]| {
                    let in_group =
                        |g: usize| lost.iter().skip(g).step_by(8).filter(|l| **l).count();
                    let all = lost.iter().filter(|l| **l).count();
                    if xor { (0..8).any(|g| in_group(g) > 1) } else { all > 8 }
                };
                let any = (0..groups).any(|_| fails(&lost_chunks(&model, 40, &mut rng)));
                f64::from(u8::from(any))
            });
            let law = transfer.completion(&scheme).unwrap().repair_probability();
            let doubt = 4.0 * (law.max(1e-3) / MESSAGES as f64).sqrt();
            assert!(
                (law - failed).abs() < doubt,
                "{model:?}: {} {law} drawn {failed}",
                scheme.name()
            );
        }
    }
}
