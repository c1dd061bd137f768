//! The number of failures before n successes.

use crate::numeric::normal_cdf;

/// Distribution of the number of failures, each of probability `p`, before the n-th success.
#[derive(Clone, Debug)]
pub(crate) struct NegativeBinomial {
    mean: f64,
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    /// `P(K ≤ k)` for k = 0, 1, …
    Table(Vec<f64>),
    /// Edgeworth's series; from a mean of 500 on, the truncation error is below 1e-4.
    Series { deviation: f64, skewness: f64, excess: f64 },
}

/// Largest mean for which the probability of no failure does not underflow.
const MAX_TABLE_MEAN: f64 = 500.0;

impl NegativeBinomial {
    pub(crate) fn new(n: f64, p: f64) -> NegativeBinomial {
        // A probability that rounds to certain failure takes very long, not forever.
        let p = p.min(1.0 - 1e-12);
        let mean = n * p / (1.0 - p);
        let law = if mean > MAX_TABLE_MEAN {
            let deviation = mean.sqrt() / (1.0 - p).sqrt();
            let skewness = (1.0 + p) / (p * n).sqrt();
            let excess = 6.0 / n + (1.0 - p) * (1.0 - p) / (p * n);
            Law::Series { deviation, skewness, excess }
        } else {
            Law::Table(table(n, p, mean))
        };
        NegativeBinomial { mean, law }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// `P(K ≤ k)`.
    pub(crate) fn cdf(&self, k: f64) -> f64 {
        if k < 0.0 {
            return 0.0;
        }
        match &self.law {
            Law::Table(sums) => sums.get(k as usize).copied().unwrap_or(1.0),
            Law::Series { deviation, skewness, excess } => {
                let z = (k.floor() + 0.5 - self.mean) / deviation;
                let density = libm::exp(-0.5 * z * z) / std::f64::consts::TAU.sqrt();
                let correction = skewness * (z * z - 1.0) / 6.0
                    + excess * z * (z * z - 3.0) / 24.0
                    + skewness * skewness * z * (z * z * z * z - 10.0 * z * z + 15.0) / 72.0;
                (normal_cdf(z) - density * correction).clamp(0.0, 1.0)
            }
        }
    }
}

/// Sums of `P(K = k) = C(n + k − 1, k) p^k (1 − p)^n`, until nothing is missing.
fn table(n: f64, p: f64, mean: f64) -> Vec<f64> {
    let mut term = libm::exp(n * libm::log1p(-p));
    let mut sums = vec![term];
    let mut sum = term;
    let mut k = 0.0;
    while k < mean || term > 1e-17 {
        term *= (n + k) / (k + 1.0) * p;
        sum += term;
        k += 1.0;
        sums.push(sum.min(1.0));
        if term == 0.0 {
            break;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_success_is_geometric() {
        let law = NegativeBinomial::new(1.0, 0.3);
        for k in 0..20 {
            assert!((law.cdf(f64::from(k)) - (1.0 - 0.3_f64.powi(k + 1))).abs() < 1e-12);
        }
        assert_eq!(law.cdf(-1.0), 0.0);
        assert_eq!(NegativeBinomial::new(9.0, 0.0).cdf(0.0), 1.0);
    }

    #[test]
    fn series_and_table_meet() {
        let (n, p) = (40_000.0, 0.012_2);
        let law = NegativeBinomial::new(n, p);
        let Law::Table(_) = law.law else { panic!("a mean of {} has a table", law.mean) };
        let deviation = law.mean.sqrt() / (1.0 - p).sqrt();
        let (skewness, excess) =
            ((1.0 + p) / (p * n).sqrt(), 6.0 / n + (1.0 - p).powi(2) / (p * n));
        let series =
            NegativeBinomial { mean: law.mean, law: Law::Series { deviation, skewness, excess } };
        for k in (350..650).step_by(10) {
            let (a, b) = (law.cdf(f64::from(k)), series.cdf(f64::from(k)));
            assert!((a - b).abs() < 1e-4, "{k}: {a} {b}");
        }
    }
}
