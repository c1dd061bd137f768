//! One point of an experiment: the model's prediction and the code's result.

use bowline::ReliableConfig;
use bowline_plan::{Allreduce, Link, Loss, Message, PlanError, Sampler, Scheme, Transfer};
use bowline_sim::experiment::{Scaled, ScaledCase};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::plan::{CHUNK_BYTES, Effort, Parameters};

/// Number of ring allreduces that are sampled for one point.
const RINGS: usize = 4000;
/// Number of messages between two checks of the standard error.
const BATCH: u32 = 10;

/// A message, or an allreduce, on a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    pub(super) scheme: String,
    pub(super) k: u32,
    pub(super) m: u32,
    pub(super) bytes: u64,
    pub(super) bandwidth_bps: f64,
    pub(super) rtt_s: f64,
    pub(super) chunk_loss: f64,
    pub(super) packets_per_chunk: u32,
    /// If set, `bytes` is the size of a ring allreduce.
    pub(super) datacenters: Option<u32>,
}

/// The predicted completion time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Expected {
    pub(super) ideal_s: f64,
    pub(super) mean_s: f64,
    pub(super) p999_s: f64,
}

/// The completion time in the simulator.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Measured {
    pub(super) messages: u32,
    pub(super) failed: u32,
    pub(super) mean_s: f64,
    /// Standard error of the mean.
    pub(super) standard_error_s: f64,
    /// Present if there were enough messages to tell.
    pub(super) p999_s: Option<f64>,
    /// Share of chunks that were lost.
    pub(super) chunk_loss: f64,
}

impl Point {
    /// A point for a scheme, written `name` or `name:k,m`, with the paper's other parameters.
    pub(super) fn of(scheme: &str) -> Result<Point, String> {
        let (name, code) = scheme.split_once(':').unwrap_or((scheme, "32,8"));
        let wrong = || format!("invalid scheme {scheme:?}: write e.g. sr-nack or ec-mds:32,8");
        let (k, m) = code.split_once(',').ok_or_else(wrong)?;
        let (k, m) = (k.parse().map_err(|_| wrong())?, m.parse().map_err(|_| wrong())?);
        ReliableConfig::default().scheme(name).map_err(|_| wrong())?;
        Ok(Point {
            scheme: name.to_owned(),
            k,
            m,
            bytes: 128 << 20,
            bandwidth_bps: 400e9,
            rtt_s: 25e-3,
            chunk_loss: 1e-5,
            packets_per_chunk: 1,
            datacenters: None,
        })
    }

    /// The scheme as text.
    pub(super) fn scheme_text(&self) -> String {
        match self.scheme.starts_with("ec") && (self.k, self.m) != (32, 8) {
            true => format!("{}({},{})", self.scheme, self.k, self.m),
            false => self.scheme.clone(),
        }
    }

    pub(super) fn distance_km(&self) -> f64 {
        self.rtt_s / bowline_plan::rtt_of_distance_s(1.0)
    }

    /// Number of chunks in one message, or in one round of an allreduce.
    pub(super) fn stage_chunks(&self) -> u64 {
        let parts = u64::from(self.datacenters.unwrap_or(1));
        self.bytes.div_ceil(parts).div_ceil(CHUNK_BYTES)
    }

    fn link(&self) -> Link {
        let loss = Loss::Chunk(self.chunk_loss);
        Link { bandwidth_bps: self.bandwidth_bps, rtt_s: self.rtt_s, loss }
    }

    fn inject_s(&self) -> f64 {
        CHUNK_BYTES as f64 * 8.0 / self.bandwidth_bps
    }

    /// The scheme in the model.
    fn model(&self, parameters: Parameters) -> Result<Scheme, String> {
        if parameters == Parameters::Paper {
            return match self.scheme.as_str() {
                "ec-mds" => Some(Scheme::ec_mds(self.k, self.m)),
                "ec-xor" => Some(Scheme::ec_xor(self.k, self.m)),
                name => Scheme::named(name),
            }
            .ok_or_else(|| format!("the model does not know {}", self.scheme));
        }
        let (k, m) = (self.k, self.m);
        let config = ReliableConfig { k, m, ..ReliableConfig::default() };
        let index = config.scheme(&self.scheme).map_err(|e| e.to_string())?;
        let shape = config.shape(self.stage_chunks() * u64::from(config.sdr.chunk_bytes));
        // Use a round-trip time at which no timer's minimum matters.
        let model = config.schemes[index].model(&shape, 1_000_000_000);
        model.ok_or_else(|| format!("{} has no model", self.scheme))
    }

    /// The model's prediction.
    pub(super) fn expect(&self, parameters: Parameters) -> Result<Expected, String> {
        let scheme = self.model(parameters)?;
        self.expect_of(&scheme).map_err(|e| e.to_string())
    }

    fn expect_of(&self, scheme: &Scheme) -> Result<Expected, PlanError> {
        let message = Message::new(self.bytes);
        let Some(datacenters) = self.datacenters else {
            let transfer = Transfer::new(self.link(), message)?;
            let law = transfer.completion(scheme)?;
            let (mean_s, p999_s) = (law.mean_s(), law.quantile_s(0.999));
            return Ok(Expected { ideal_s: transfer.ideal_s(), mean_s, p999_s });
        };
        let ring = Allreduce::new(self.link(), message, datacenters)?;
        let sampler = Sampler::new(ring.stage(), scheme)?;
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (mean_s, p999_s) = rings(&ring, || sampler.draw(&mut rng));
        Ok(Expected { ideal_s: ring.ideal_s(), mean_s, p999_s })
    }

    /// Runs the code and measures.
    pub(super) fn measure(&self, effort: Effort) -> Result<Measured, String> {
        let case = ScaledCase {
            seed: 1,
            chunks: self.stage_chunks() as u32,
            packets_per_chunk: self.packets_per_chunk,
            inject_s: self.inject_s(),
            rtt_s: self.rtt_s,
            packet_loss: Loss::Chunk(self.chunk_loss).of_packet(self.packets_per_chunk.into()),
            scheme: self.scheme.clone(),
            k: self.k,
            m: self.m,
        };
        let mut code = Scaled::new(&case).ok_or("the connection refuses such messages")?;
        let (mut times, mut failed) = (Vec::new(), 0);
        while failed == 0 && (times.len() as u32) < effort.most {
            for _ in 0..BATCH {
                match code.next_s() {
                    Some(time) => times.push(time),
                    // The connection is no longer usable.
                    None => {
                        failed = 1;
                        break;
                    }
                }
            }
            let (mean, error) = mean_and_error(&times);
            if times.len() as u32 >= effort.least && error <= effort.standard_error * mean {
                break;
            }
        }
        let (mut mean_s, mut standard_error_s) = mean_and_error(&times);
        times.sort_by(f64::total_cmp);
        let mut p999_s = (times.len() >= 1000).then(|| quantile(&times, 0.999));
        if let (Some(datacenters), false) = (self.datacenters, times.is_empty()) {
            // The rounds come from the code; how they depend on each other is the recurrence of
            // appendix C.
            let ring = Allreduce::new(self.link(), Message::new(self.bytes), datacenters)
                .map_err(|e| e.to_string())?;
            let mut rng = ChaCha8Rng::seed_from_u64(2);
            let (mean, p999) = rings(&ring, || times[rng.random_range(0..times.len())]);
            standard_error_s *= mean / mean_s;
            (mean_s, p999_s) = (mean, Some(p999));
        }
        let (messages, chunk_loss) = (times.len() as u32, code.chunk_loss());
        Ok(Measured { messages, failed, mean_s, standard_error_s, p999_s, chunk_loss })
    }
}

/// Mean and 99.9th percentile of allreduces whose round times come from `draw`.
fn rings(ring: &Allreduce, mut draw: impl FnMut() -> f64) -> (f64, f64) {
    let mut times: Vec<f64> = (0..RINGS).map(|_| ring.run(&mut draw)).collect();
    times.sort_by(f64::total_cmp);
    (times.iter().sum::<f64>() / RINGS as f64, quantile(&times, 0.999))
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

fn mean_and_error(times: &[f64]) -> (f64, f64) {
    let n = times.len() as f64;
    let mean = times.iter().sum::<f64>() / n;
    let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}
