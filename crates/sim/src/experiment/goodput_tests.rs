use bowline_link::{LinkConfig, Loss, Prob};
use bowline_nic::Mtu;

use super::goodput::{Goodput, GoodputConfig, goodput};

const MTU: u32 = 1024;

/// 10 Gbit/s and a round trip of `rtt_us`, with a window of one bandwidth-delay product and a bit.
fn config(loss: f64, rtt_us: u64) -> GoodputConfig {
    let bdp = (10_000 * rtt_us / 8) as u32;
    GoodputConfig {
        seed: 1,
        cable: LinkConfig {
            rate_bps: Some(10_000_000_000),
            delay_ns: rtt_us * 500,
            queue_bytes: 64 << 20,
            ecn: None,
        },
        loss: Loss::Iid(Prob::new(loss)),
        changes: &[],
        fec: None,
        mtu: Mtu::B1024,
        message_bytes: 64 << 10,
        messages: 600,
        depth: 64,
        window_bytes: bdp + 32 * MTU,
        timeout: 10,
    }
}

fn measure(config: &GoodputConfig) -> Goodput {
    goodput(config).expect("the connection holds")
}

#[test]
fn without_loss_the_link_is_full() {
    let result = measure(&config(0.0, 100));
    assert_eq!(result.retransmitted, 0);
    // Headers and gaps take a tenth of a packet of 1 KiB.
    assert!(result.bits_per_sec > 8.5e9, "{result:?}");
}

#[test]
fn going_back_costs_a_window_for_each_loss() {
    let lossless = measure(&config(0.0, 100));
    for loss in [0.001, 0.005] {
        let config = config(loss, 100);
        let result = measure(&config);
        let window_packets = f64::from(config.window_bytes / MTU);
        let predicted = 1.0 / (1.0 + loss * window_packets);
        let measured = result.bits_per_sec / lossless.bits_per_sec;
        assert!(
            (measured / predicted - 1.0).abs() < 0.25,
            "loss {loss}: predicted {predicted:.3}, measured {measured:.3}, {result:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_goodput() {
    let config = config(0.01, 50);
    assert_eq!(goodput(&config), goodput(&config));
}

#[test]
fn with_fec_losses_cost_no_window() {
    let fec = |loss| GoodputConfig { fec: Some("32,1".parse().unwrap()), ..config(loss, 1_000) };
    let (lossless, lossy) = (measure(&fec(0.0)), measure(&fec(0.001)));
    assert!(lossy.fec.recovered > 20, "{lossy:?}");
    assert!(lossy.bits_per_sec > 0.9 * lossless.bits_per_sec, "{lossy:?}");
    let without = measure(&config(0.001, 1_000));
    assert!(lossy.bits_per_sec > 1.5 * without.bits_per_sec, "{without:?}");
}
