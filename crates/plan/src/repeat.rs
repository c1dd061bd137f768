//! Selective repeat: the law of the last chunk's arrival (section 4.2.2, appendix A).
//!
//! Chunk i of M is first sent at `t_start(i) = i · T_INJ` and again every `O = RTO + T_INJ`:
//!
//! `X_i = t_start(i) + O (Y_i − 1)`, `Y_i` geometric, `T_SR(M) = max X_i + RTT`.
//!
//! Appendix A's `P(X_i ≥ q) = P_drop^⌈(q − t_start(i)) / O⌉` depends on i only through how many
//! repetitions still fit before q. Chunks that fit equally many are grouped, so the product over M
//! chunks is a product over rounds:
//!
//! `P(max X_i ≤ t) = Π_j (1 − P_drop^(j+1))^n_j`, `n_j` = chunks with `⌊(t − t_start(i)) / O⌋ = j`.
//!
//! Its cost does not depend on M. With `t = M T_INJ + u`, chunk `M − s` has had `u + s T_INJ` since it
//! was first sent.

use crate::link::any_of;

/// Rounds whose chance is below this make no difference to any digit that is kept.
const NEGLIGIBLE: f64 = 1e-18;

/// Above this loss, rounds are taken several at a time: there are hundreds of them, and what is
/// asked for is when the last is over.
const MAX_ROUND_LOSS: f64 = 0.99;

/// So many kinds of steps in one injection time are resolved; more are taken as a slope, which is off
/// by less than one injection time of the many.
const MAX_STEPS: usize = 64;

/// Law of `max X_i` over the chunks of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    chunks: f64,
    inject_s: f64,
    /// O: what a loss costs.
    overhead_s: f64,
    /// Probability that a chunk's first transmission is lost, apart from its neighbours.
    first: f64,
    /// Probability that any later one is.
    loss: f64,
    /// Mean of what taking rounds together leaves out.
    shift_s: f64,
    /// After so many rounds nothing is missing.
    rounds: u32,
}

impl Repeat {
    /// For `chunks` chunks, each lost with probability `loss`, in `events` apart from each other.
    pub(crate) fn new(chunks: u64, inject_s: f64, rto_s: f64, events: f64, loss: f64) -> Repeat {
        let mut repeat = Repeat {
            chunks: chunks as f64,
            inject_s,
            overhead_s: rto_s + inject_s,
            first: events,
            loss,
            shift_s: 0.0,
            rounds: 0,
        };
        if loss > MAX_ROUND_LOSS {
            let together = (MAX_ROUND_LOSS.ln() / loss.ln()).max(1.0).floor();
            repeat.shift_s = 0.5 * (together - 1.0) * repeat.overhead_s;
            repeat.overhead_s *= together;
            repeat.loss = loss.powf(together);
            repeat.first = repeat.loss;
        }
        while repeat.chunks * repeat.survival(repeat.rounds + 1) > NEGLIGIBLE {
            repeat.rounds += 1;
        }
        repeat
    }

    /// When the last chunk is first sent.
    pub(crate) fn least_s(&self) -> f64 {
        self.chunks * self.inject_s + self.shift_s
    }

    /// Probability that a chunk is still missing after `sent` transmissions.
    fn survival(&self, sent: u32) -> f64 {
        match sent {
            0 => 1.0,
            1 => self.first,
            _ => self.loss.powf(f64::from(sent)).min(self.first),
        }
    }

    /// `ln(1 − P(Y > sent))`.
    fn ln_there(&self, sent: u32) -> f64 {
        (-self.survival(sent)).ln_1p()
    }

    /// Chunks, the latest first, that have had less than `age_s` by `u`: `⌈(age − u) / T_INJ⌉`.
    fn younger(&self, age_s: f64, u_s: f64) -> f64 {
        let exact = (age_s - u_s) / self.inject_s;
        // What is a whole number but for rounding is one.
        (exact - 1e-9 * exact.abs().max(1.0)).ceil().clamp(0.0, self.chunks)
    }

    /// `P(max X_i ≤ t)`.
    pub(crate) fn cdf(&self, t_s: f64) -> f64 {
        let u_s = t_s - self.least_s();
        if u_s < -1e-12 * t_s {
            return 0.0;
        }
        self.ln_cdf(u_s.max(0.0)).exp()
    }

    fn ln_cdf(&self, u_s: f64) -> f64 {
        let mut fits = (u_s / self.overhead_s + 1e-9).floor();
        let mut sum = 0.0;
        let mut counted = 0.0;
        while counted < self.chunks && fits < f64::from(self.rounds) {
            let upto = self.younger((fits + 1.0) * self.overhead_s, u_s);
            sum += (upto - counted) * self.ln_there(fits as u32 + 1);
            counted = upto;
            fits += 1.0;
        }
        sum
    }

    /// `E[max X_i] = ∫ P(max X_i > t) dt`: appendix A's sum, with steps as fine as the law's own.
    ///
    /// The distribution is a staircase in t. Between the times when a repetition begins or ceases to
    /// matter, each injection time climbs by the same factor, so a stretch of any length is a geometric
    /// series.
    pub(crate) fn mean_s(&self) -> f64 {
        let span_s = self.chunks * self.inject_s;
        let mut edges = vec![0.0];
        for round in 1..=self.rounds {
            let full = f64::from(round) * self.overhead_s;
            edges.push(full);
            if full > span_s {
                edges.push(full - span_s);
            }
        }
        edges.sort_by(f64::total_cmp);
        let missing: f64 =
            edges.windows(2).map(|edge| edge[1] - edge[0] - self.area(edge[0], edge[1])).sum();
        self.least_s() + missing
    }

    /// `∫ P(max X_i ≤ t) dt` between two edges.
    fn area(&self, from_s: f64, to_s: f64) -> f64 {
        let length_s = to_s - from_s;
        if length_s <= 1e-12 * self.overhead_s {
            return length_s;
        }
        // Rounds that some chunks have had and some have not, at any time in between.
        let middle_s = from_s + 0.5 * length_s;
        let first = (middle_s / self.overhead_s).floor() as u32 + 1;
        let last = ((middle_s + self.chunks * self.inject_s) / self.overhead_s).floor();
        let last = (last as u32).min(self.rounds);
        let gain = |round: u32| self.ln_there(round + 1) - self.ln_there(round);
        let climb: f64 = (first..=last).map(gain).sum();
        let steps = (last + 1).saturating_sub(first) as usize;
        if steps > MAX_STEPS {
            let start = self.ln_cdf(from_s + 0.5 * self.inject_s);
            return exp_area(start, climb / self.inject_s, length_s);
        }
        let start = self.ln_cdf(from_s);
        // Where in an injection time each round climbs, and by which factor.
        let mut jumps: Vec<(f64, f64)> = (first..=last)
            .map(|round| {
                let away_s = f64::from(round) * self.overhead_s - from_s;
                let phase = (away_s / self.inject_s).fract();
                (if phase < 1e-9 { 1.0 } else { phase } * self.inject_s, gain(round).exp())
            })
            .collect();
        jumps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let within = |length_s: f64| {
            let (mut at, mut level, mut area) = (0.0, 1.0, 0.0);
            for (phase_s, factor) in &jumps {
                let to = phase_s.min(length_s);
                area += level * (to - at);
                at = to;
                level *= if *phase_s < length_s { *factor } else { 1.0 };
            }
            area + level * (length_s - at)
        };
        let whole = (length_s / self.inject_s + 1e-9).floor();
        let rest_s = (length_s - whole * self.inject_s).max(0.0);
        // 1 + f + f² + … of the factor f that one injection time climbs, taken from the top: a long
        // climb begins at a number too small to write down.
        let top = (start + climb * whole).exp();
        let series = if climb * whole < 1e-9 {
            start.exp() * whole
        } else {
            top * -(-climb * whole).exp_m1() / climb.exp_m1()
        };
        within(self.inject_s) * series + top * within(rest_s)
    }

    /// Share of chunks' transmissions that are repetitions, over the data: `P / (1 − P)`.
    pub(crate) fn repeated_share(loss: f64) -> f64 {
        loss / (1.0 - loss)
    }

    /// Probability that any chunk has to be sent again.
    pub(crate) fn any_repeated(&self) -> f64 {
        any_of(self.first, self.chunks)
    }
}

/// `∫ exp(start + slope t) dt` from 0 to `length`.
fn exp_area(start: f64, slope: f64, length: f64) -> f64 {
    let rise = slope * length;
    let mean = if rise.abs() < 1e-9 { 1.0 } else { -(-rise).exp_m1() / rise };
    (start + rise).exp() * length * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appendix A as it stands: the product over all chunks, integrated over the staircase's own
    /// steps.
    fn by_the_book(chunks: u64, inject: f64, rto: f64, p: f64) -> (f64, impl Fn(f64) -> f64) {
        let overhead = rto + inject;
        let cdf = move |t: f64| {
            (1..=chunks)
                .map(|i| {
                    let since = t - i as f64 * inject;
                    if since < -1e-9 {
                        return 0.0;
                    }
                    1.0 - p.powf((since / overhead + 1e-9).floor() + 1.0)
                })
                .product::<f64>()
        };
        let mut steps: Vec<f64> = (1..=chunks)
            .flat_map(|i| (0..60).map(move |j| i as f64 * inject + f64::from(j) * overhead))
            .collect();
        steps.push(0.0);
        steps.sort_by(f64::total_cmp);
        let mean = steps.windows(2).map(|w| (w[1] - w[0]) * (1.0 - cdf(0.5 * (w[0] + w[1])))).sum();
        (mean, cdf)
    }

    #[test]
    fn the_law_is_appendix_a_to_the_last_digits() {
        // Injection below, near and far above the timeout, whole and broken ratios.
        for (chunks, inject, rto) in
            [(1, 1.0, 3.0), (7, 1.0, 30.0), (40, 1.0, 3.5), (100, 0.37, 7.1), (60, 1.0, 0.2)]
        {
            for p in [1e-6, 1e-3, 0.05, 0.4] {
                let law = Repeat::new(chunks, inject, rto, p, p);
                let (mean, cdf) = by_the_book(chunks, inject, rto, p);
                let ours = law.mean_s();
                assert!(
                    (ours / mean - 1.0).abs() < 1e-9,
                    "{chunks} {inject} {rto} {p}: {ours} {mean}"
                );
                for i in 1..200 {
                    let t = f64::from(i) * 0.713;
                    assert!((law.cdf(t) - cdf(t)).abs() < 1e-9, "{chunks} {rto} {p} at {t}");
                }
            }
        }
    }

    #[test]
    fn a_single_chunk_is_geometric() {
        for p in [0.1, 0.9, 0.999, 0.999_99] {
            let law = Repeat::new(1, 1.0, 9.0, p, p);
            let mean = 1.0 + 10.0 * p / (1.0 - p);
            assert!((law.mean_s() / mean - 1.0).abs() < 0.01, "{p}: {} {mean}", law.mean_s());
        }
    }

    #[test]
    fn nothing_lost_takes_the_time_of_injection() {
        let law = Repeat::new(2048, 1e-6, 75e-3, 0.0, 0.0);
        assert_eq!(law.mean_s(), law.least_s());
        assert_eq!(law.cdf(law.least_s()), 1.0);
        assert_eq!(law.cdf(law.least_s() * 0.999), 0.0);
        assert_eq!(law.any_repeated(), 0.0);
    }
}
