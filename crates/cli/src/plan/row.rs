//! What the table has about each scheme.

use bowline_plan::{Completion, Sampler, Scheme, Transfer};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use super::args::named;
use super::cores::CodingRates;
use super::needs::Peer;

/// One scheme.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) times: Times,
    /// Section 4.2.3's expectation as printed.
    pub(super) paper_mean_s: f64,
    pub(super) slowdown: f64,
    pub(super) p999_slowdown: f64,
    pub(super) bandwidth_overhead: f64,
    pub(super) repair_probability: f64,
    /// Cores that coding takes at the link's rate; none for schemes that do not code.
    pub(super) cores: Option<f64>,
    /// Who must be at the other end.
    pub(super) peer: Peer,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sampled: Option<Times>,
}

/// Mean and quantiles in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    pub(super) mean_s: f64,
    pub(super) p50_s: f64,
    pub(super) p99_s: f64,
    pub(super) p999_s: f64,
}

impl Times {
    pub(super) fn of(law: &Completion) -> Times {
        Times {
            mean_s: law.mean_s(),
            p50_s: law.quantile_s(0.5),
            p99_s: law.quantile_s(0.99),
            p999_s: law.quantile_s(0.999),
        }
    }

    /// Of draws in order of length.
    pub(super) fn of_draws(sorted: &[f64]) -> Times {
        let n = sorted.len();
        let quantile = |q: f64| sorted[((n as f64 * q).ceil() as usize).clamp(1, n) - 1];
        Times {
            mean_s: sorted.iter().sum::<f64>() / n as f64,
            p50_s: quantile(0.5),
            p99_s: quantile(0.99),
            p999_s: quantile(0.999),
        }
    }
}

impl Row {
    pub(super) fn new(
        transfer: &Transfer,
        scheme: &Scheme,
        rates: &CodingRates,
    ) -> Result<Row, String> {
        let law = transfer.completion(scheme).map_err(named)?;
        let times = Times::of(&law);
        let ideal_s = transfer.ideal_s();
        Ok(Row {
            name: scheme.name(),
            times,
            paper_mean_s: law.paper_mean_s(),
            slowdown: times.mean_s / ideal_s,
            p999_slowdown: times.p999_s / ideal_s,
            bandwidth_overhead: law.bandwidth_overhead(),
            repair_probability: law.repair_probability(),
            cores: rates.cores(scheme, transfer.link().bandwidth_bps),
            peer: Peer::of(scheme),
            sampled: None,
        })
    }

    /// Draws messages at random beside the model.
    pub(super) fn sample(
        &mut self,
        transfer: &Transfer,
        scheme: &Scheme,
        samples: u32,
        seed: u64,
    ) -> Result<(), String> {
        let sampler = Sampler::new(transfer, scheme).map_err(named)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        self.sampled = Some(Times::of_draws(&sampler.sorted(samples as usize, &mut rng)));
        Ok(())
    }
}
