//! A row of the table.

use bowline_plan::{Completion, PlanError, Scheme, Transfer};
use serde::Serialize;

use crate::needs::Peer;

/// One scheme.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Mean and quantiles.
    #[serde(flatten)]
    pub times: Times,
    /// Section 4.2.3's expectation as printed.
    pub paper_mean_s: f64,
    /// The mean over the ideal.
    pub slowdown: f64,
    /// The 99.9th percentile over the ideal.
    pub p999_slowdown: f64,
    /// Bytes sent besides the message's own, relative to those.
    pub bandwidth_overhead: f64,
    /// Probability that anything is retransmitted.
    pub repair_probability: f64,
    /// Cores that coding takes at the link's rate; none for schemes that do not code.
    pub cores: Option<f64>,
    /// What must be at the other end.
    pub peer: Peer,
    /// Sampled at random, as a check on the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Times>,
}

/// Mean and quantiles in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// Mean.
    pub mean_s: f64,
    /// Median.
    pub p50_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// 99.9th percentile.
    pub p999_s: f64,
}

impl Times {
    /// Of a distribution.
    pub fn of(law: &Completion) -> Times {
        Times {
            mean_s: law.mean_s(),
            p50_s: law.quantile_s(0.5),
            p99_s: law.quantile_s(0.99),
            p999_s: law.quantile_s(0.999),
        }
    }

    /// Of sorted samples.
    pub fn of_draws(sorted: &[f64]) -> Times {
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
    /// The row of a scheme, with the cores that its code takes if it has one.
    pub(crate) fn new(
        transfer: &Transfer,
        scheme: &Scheme,
        cores: Option<f64>,
    ) -> Result<Row, PlanError> {
        let law = transfer.completion(scheme)?;
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
            cores,
            peer: Peer::of(scheme),
            sampled: None,
        })
    }
}
