//! Numerics that stay accurate for tiny values.
//!
//! Transcendental functions come from `libm`, never from the system: a plan has the same digits on
//! every machine, and in a browser. `clippy.toml` of this crate forbids the others.

/// Logarithm of the binomial coefficient.
pub(crate) fn ln_choose(n: f64, k: f64) -> f64 {
    libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0)
}

/// Probability that more than `limit` of `n` independent events of probability `p` happen.
///
/// Sums the tail itself, never one minus the rest: a tail of 1e-40 keeps its digits.
pub(crate) fn binomial_above(limit: u32, n: u32, p: f64) -> f64 {
    if p <= 0.0 || limit >= n {
        return 0.0;
    }
    if p >= 1.0 {
        return 1.0;
    }
    let first = limit + 1;
    let ln_first = ln_choose(n.into(), first.into())
        + f64::from(first) * libm::log(p)
        + f64::from(n - first) * libm::log1p(-p);
    let mut term = libm::exp(ln_first);
    let mut sum = term;
    for i in first..n {
        term *= f64::from(n - i) / f64::from(i + 1) * p / (1.0 - p);
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum.min(1.0)
}

/// Distribution function of the standard normal law.
pub(crate) fn normal_cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

/// A negligible relative error.
pub(crate) const TEN_DIGITS: f64 = 1e-10;

/// Smallest `t` from `low` on with `cdf(t) >= q`, with a relative error of at most `tolerance`;
/// searches in steps that grow from `scale`.
pub(crate) fn invert(
    cdf: impl Fn(f64) -> f64,
    q: f64,
    low: f64,
    scale: f64,
    tolerance: f64,
) -> f64 {
    if cdf(low) >= q {
        return low;
    }
    let (mut low, mut step) = (low, scale);
    while cdf(low + step) < q {
        low += step;
        step *= 2.0;
        if !low.is_finite() {
            return f64::INFINITY;
        }
    }
    let mut high = low + step;
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high || high - low < tolerance * high {
            break;
        }
        if cdf(middle) >= q { high = middle } else { low = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_right_where_they_can_be_counted() {
        assert!((binomial_above(0, 2, 0.1) - 0.19).abs() < 1e-15);
        assert!((binomial_above(1, 2, 0.1) - 0.01).abs() < 1e-15);
        assert_eq!(binomial_above(2, 2, 0.1), 0.0);
        assert_eq!(binomial_above(0, 2, 0.0), 0.0);
        assert_eq!(binomial_above(0, 2, 1.0), 1.0);
        // One minus the rest would be 0 here.
        let tiny = binomial_above(8, 40, 1e-6);
        assert!((tiny / (273_438_880.0 * 1e-54) - 1.0).abs() < 1e-3, "{tiny}");
    }

    #[test]
    fn inversion_finds_steps() {
        let step = |t: f64| if t >= 3.0 { 1.0 } else { 0.25 };
        assert_eq!(invert(step, 0.25, 1.0, 0.1, TEN_DIGITS), 1.0);
        assert!((invert(step, 0.5, 1.0, 0.1, TEN_DIGITS) - 3.0).abs() < 1e-9);
    }
}
