//! Connections that are not told the rate of the path.

use bowline_link::LinkConfig;
use bowline_nic::{BbrParams, Mtu, RateControl};
use bowline_sdr::{ReliableConfig, SdrConfig};

use super::{Losses, Session};

const RATE_BPS: u64 = 200_000_000;

/// Share of a link of 200 Mbit/s, 40 ms and a queue of one bandwidth-delay product that messages of
/// 32 MiB achieve, after the first: the lowest of some seeds.
fn share(scheme: &str, loss: f64, seeds: u64) -> f64 {
    let shares = (1..=seeds).map(|seed| share_of(seed, scheme, loss));
    shares.min_by(f64::total_cmp).unwrap_or(0.0)
}

fn share_of(seed: u64, scheme: &str, loss: f64) -> f64 {
    let queue_bytes = RATE_BPS / 8 / 25;
    let cable =
        LinkConfig { rate_bps: Some(RATE_BPS), delay_ns: 20_000_000, queue_bytes, ecn: None };
    let congestion = Some(RateControl::Bbr(BbrParams::default()));
    let sdr =
        SdrConfig { mtu: Mtu::B1024, chunk_bytes: 2 << 10, congestion, ..SdrConfig::default() };
    let reliable = ReliableConfig { sdr, max_write: 32 << 20, ..ReliableConfig::default() };
    let mut session = Session::connect(seed, cable, &reliable);
    session.set_losses(Losses { forward: loss, back: loss });
    let scheme = reliable.scheme(scheme).unwrap();
    session.write(32 << 20, scheme).expect("it arrives");
    let nanos: u64 = (0..3).map(|_| session.write(32 << 20, scheme).expect("it arrives")).sum();
    // Each message also takes a round trip, and the notice of its end another half.
    let wire: u64 = 3 * ((32 << 20) * 8 * 5 + 60_000_000);
    wire as f64 / nanos as f64
}

#[test]
fn selective_repeat_finds_the_rate_of_the_path() {
    // At 1 % loss, the beginning of the third message of seed 1 is lost.
    for (loss, seeds, expected) in [(0.0, 8, 0.9), (0.01, 16, 0.8)] {
        let share = share("sr-nack", loss, seeds);
        assert!(share > expected, "{loss}: {share}");
    }
}

#[test]
fn erasure_coding_finds_the_rate_of_the_path() {
    // Eight chunks of parity for each 32.
    let share = share("ec-mds", 0.001, 8);
    assert!(share > 0.9 * 0.8, "{share}");
}
