//! Model against sampling over the paper's ranges.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_plan::{Link, Loss, Message, PlanError, Sampler, Scheme, Transfer, rtt_of_distance_s};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

/// 128 KiB to 2 TiB, as figures 3a and 10a.
const SIZES: [u64; 6] = [128 << 10, 8 << 20, 128 << 20, 1 << 30, 32 << 30, 2 << 40];
/// Chunk losses of figures 3c, 9 and 10.
const LOSSES: [f64; 7] = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1];
/// Bandwidth and distance, as figures 3b and 12.
const LINKS: [(f64, f64); 3] = [(400e9, 3750.0), (100e9, 350.0), (1600e9, 6000.0)];

/// Most that the mean and the p99.9 of model and sample may differ.
pub(crate) const MEAN_BAR: f64 = 0.01;
pub(crate) const P999_BAR: f64 = 0.03;

/// One scheme at one point.
#[derive(Serialize)]
pub(crate) struct Comparison {
    pub(crate) scheme: &'static str,
    pub(crate) bytes: u64,
    pub(crate) chunk_loss: f64,
    pub(crate) bandwidth_bps: f64,
    pub(crate) distance_km: f64,
    pub(crate) mean_s: f64,
    pub(crate) mean_error: f64,
    pub(crate) p999_s: f64,
    pub(crate) p999_error: f64,
    /// The law jumps within the sample's own error of its p99.9: between which times.
    pub(crate) jump_s: Option<(f64, f64)>,
}

impl Comparison {
    /// Whether the sample's p99.9 is the model's, or on the other side of a jump that it cannot
    /// tell.
    pub(crate) fn holds(&self) -> bool {
        let sampled_s = self.p999_s / (1.0 + self.p999_error);
        let tail = match self.jump_s {
            None => self.p999_error.abs() <= P999_BAR,
            Some((low, high)) => {
                (low * (1.0 - P999_BAR)..=high * (1.0 + P999_BAR)).contains(&sampled_s)
            }
        };
        self.mean_error.abs() <= MEAN_BAR && tail
    }
}

/// Compares everything, on all cores.
pub(crate) fn compare(samples: u32, seed: u64) -> Result<Vec<Comparison>, PlanError> {
    let mut points = Vec::new();
    for (bandwidth_bps, distance_km) in LINKS {
        for bytes in SIZES {
            for chunk_loss in LOSSES {
                for scheme in Scheme::all().into_iter().filter(Scheme::is_reliable) {
                    points.push((bandwidth_bps, distance_km, bytes, chunk_loss, scheme));
                }
            }
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || -> Result<(), PlanError> {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((bandwidth_bps, distance_km, bytes, chunk_loss, scheme)) = points.get(i)
            else {
                return Ok(());
            };
            let rtt_s = rtt_of_distance_s(*distance_km);
            let link =
                Link { bandwidth_bps: *bandwidth_bps, rtt_s, loss: Loss::Chunk(*chunk_loss) };
            let transfer = Transfer::new(link, Message::new(*bytes))?;
            let row = one(&transfer, scheme, *distance_km, samples, seed + i as u64)?;
            done.lock().expect("no worker panics").push((i, row));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("no worker panics"))
    })?;
    let mut rows = done.into_inner().expect("no worker panics");
    rows.sort_by_key(|(i, _)| *i);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn one(
    transfer: &Transfer,
    scheme: &Scheme,
    distance_km: f64,
    samples: u32,
    seed: u64,
) -> Result<Comparison, PlanError> {
    const Q: f64 = 0.999;
    let law = transfer.completion(scheme)?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let times = Sampler::new(transfer, scheme)?.sorted(samples as usize, &mut rng);
    let n = f64::from(samples);
    let mean_s = times.iter().sum::<f64>() / n;
    let p999_s = times[(n * Q).ceil() as usize - 1];
    // Four standard deviations of how many of a sample lie beyond the quantile.
    let doubt = 4.0 * (Q * (1.0 - Q) / n).sqrt();
    let (low, high) = (law.quantile_s(Q - doubt), law.quantile_s((Q + doubt).min(1.0 - 1e-9)));
    Ok(Comparison {
        scheme: scheme.name(),
        bytes: transfer.message().bytes,
        chunk_loss: transfer.chunk_loss(),
        bandwidth_bps: transfer.link().bandwidth_bps,
        distance_km,
        mean_s: law.mean_s(),
        mean_error: law.mean_s() / mean_s - 1.0,
        p999_s: law.quantile_s(Q),
        p999_error: law.quantile_s(Q) / p999_s - 1.0,
        jump_s: (high > low * (1.0 + P999_BAR)).then_some((low, high)),
    })
}
