//! Reproduces Figure 10 of the SDR-RDMA paper: how loss slows a 128 MiB write over 400 Gbit/s and
//! 25 ms, by scheme.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::completion::{CompletionConfig, completion};

const BYTES: u64 = 128 << 20;
const BITS_PER_SEC: u64 = 400_000_000_000;
const RTT_NS: u64 = 25_000_000;

/// The schemes, by their names.
pub const SCHEMES: [&str; 4] = ["sr-rto", "sr-nack", "ec-mds", "ec-xor"];

/// The chunk loss rates of a sweep, and repetitions at each.
#[derive(Clone, Debug)]
pub struct Fig10Config {
    /// Probabilities that a chunk of 64 KiB is lost.
    pub chunk_losses: Vec<f64>,
    /// Messages for each scheme and loss.
    pub repetitions: u32,
}

impl Fig10Config {
    /// The whole figure.
    pub fn full() -> Fig10Config {
        let chunk_losses = vec![0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1];
        Fig10Config { chunk_losses, repetitions: 20 }
    }

    /// Enough for its trend.
    pub fn quick() -> Fig10Config {
        Fig10Config { chunk_losses: vec![1e-3, 1e-2], repetitions: 3 }
    }
}

/// One scheme at one loss rate.
#[derive(Clone, Debug)]
pub struct Fig10Row {
    /// The scheme.
    pub scheme: &'static str,
    /// Probability that a chunk is lost.
    pub chunk_loss: f64,
    /// Mean completion time over size / bandwidth + RTT.
    pub mean_slowdown: f64,
    /// The highest slowdown.
    pub worst_slowdown: f64,
    /// What a simple model expects: see [`model`].
    pub model: f64,
    /// Chunks retransmitted per message.
    pub resent: f64,
    /// Chunks recovered from parity per message.
    pub recovered: f64,
    /// Messages that failed; should be 0.
    pub failed: u32,
}

/// Runs all schemes at all losses on `jobs` threads; calls `progress` after each message.
pub fn fig10(config: &Fig10Config, jobs: usize, progress: impl Fn() + Sync) -> Vec<Fig10Row> {
    let cases: Vec<(f64, &str)> =
        config.chunk_losses.iter().flat_map(|loss| SCHEMES.map(|scheme| (*loss, scheme))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        while let Some((loss, scheme)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            rows.push(row(scheme, *loss, config.repetitions, &progress));
        }
        rows
    };
    let mut rows: Vec<Fig10Row> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker does not panic")).collect()
    });
    let place = |row: &Fig10Row| {
        cases.iter().position(|(loss, scheme)| *loss == row.chunk_loss && *scheme == row.scheme)
    };
    rows.sort_by_key(place);
    rows
}

fn row(scheme: &'static str, chunk_loss: f64, repetitions: u32, progress: &impl Fn()) -> Fig10Row {
    let mut config = CompletionConfig::new(BYTES, BITS_PER_SEC, RTT_NS);
    config.set_chunk_loss(chunk_loss);
    config.scheme = config.reliable.scheme(scheme).expect("a standard scheme");
    let mut slowdowns = Vec::new();
    let (mut resent, mut recovered) = (0, 0);
    for seed in 0..repetitions {
        config.seed = seed.into();
        if let Some(result) = completion(&config) {
            slowdowns.push(result.time_ns as f64 / config.ideal_ns());
            resent += result.sender.chunks_resent;
            recovered += result.receiver.chunks_recovered;
        }
        progress();
    }
    let count = slowdowns.len().max(1) as f64;
    Fig10Row {
        scheme,
        chunk_loss,
        mean_slowdown: slowdowns.iter().sum::<f64>() / count,
        worst_slowdown: slowdowns.iter().copied().fold(0.0, f64::max),
        model: model(&config, scheme, chunk_loss),
        resent: resent as f64 / count,
        recovered: recovered as f64 / count,
        failed: repetitions - slowdowns.len() as u32,
    }
}

/// Mean slowdown as the paper derives it: a loss costs selective repeat three round trips until the
/// timeout, or one after a NACK, and again each time the same chunk is lost. Coding pays for
/// parity, and pays the timeout and a round trip only for a group that cannot be recovered.
pub fn model(config: &CompletionConfig, scheme: &str, p: f64) -> f64 {
    let reliable = &config.reliable;
    let chunks = config.bytes.div_ceil(reliable.sdr.chunk_bytes.into()) as f64;
    let groups = (chunks / f64::from(reliable.k)).ceil();
    let (k, m) = (f64::from(reliable.k), f64::from(reliable.m));
    let rtt_ns = 2.0 * config.cable.delay_ns as f64;
    let rounds: f64 = (1..40).map(|r| 1.0 - (1.0 - p.powi(r)).powf(chunks)).sum();
    let coded = |failing: f64| {
        let parity_ns = config.cable.transmit_ns(config.bytes) as f64 * m / k;
        parity_ns + failing * 2.0 * rtt_ns
    };
    let added_ns = match scheme {
        "sr-rto" => rounds * 3.0 * rtt_ns,
        "sr-nack" => rounds * rtt_ns,
        "ec-mds" => {
            let fails = more_than(reliable.m, reliable.k + reliable.m, p);
            coded(1.0 - (1.0 - fails).powf(groups))
        }
        _ => {
            let fails = more_than(1, reliable.k / reliable.m + 1, p);
            coded(1.0 - (1.0 - fails).powf(groups * m))
        }
    };
    1.0 + added_ns / config.ideal_ns()
}

/// Probability that more than `limit` of `n` are lost.
fn more_than(limit: u32, n: u32, p: f64) -> f64 {
    let mut term = (1.0 - p).powi(n as i32);
    let mut at_most = term;
    for i in 0..limit {
        term *= f64::from(n - i) / f64::from(i + 1) * p / (1.0 - p);
        at_most += term;
    }
    (1.0 - at_most).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_papers_trend() {
        let config = CompletionConfig::new(BYTES, BITS_PER_SEC, RTT_NS);
        for p in [1e-3, 1e-2] {
            assert!(model(&config, "sr-rto", p) > 3.0);
            assert!(model(&config, "sr-nack", p) > 1.5);
            assert!(model(&config, "ec-mds", p) < 1.1);
        }
        assert!((more_than(0, 2, 0.1) - 0.19).abs() < 1e-12);
        assert!((more_than(1, 2, 0.1) - 0.01).abs() < 1e-12);
    }

    #[test]
    fn a_lossless_message_takes_what_it_must() {
        let mut config = CompletionConfig::new(8 << 20, 100_000_000_000, 5_000_000);
        for scheme in SCHEMES {
            config.scheme = config.reliable.scheme(scheme).unwrap();
            let result = completion(&config).expect("the write succeeds");
            let slowdown = result.time_ns as f64 / config.ideal_ns();
            assert!((1.0..1.05).contains(&slowdown), "{scheme}: {slowdown}");
            assert_eq!(result.sender.chunks_resent, 0);
        }
    }
}
