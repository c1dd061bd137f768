//! Selective repeat: the distribution of the last chunk's arrival (section 4.2.2, appendix A).
//!
//! Chunk i of M is first sent at `t_start(i) = i · T_INJ` and again every `O = RTO + T_INJ`:
//!
//! `X_i = t_start(i) + O (Y_i − 1)`, `Y_i` geometric, `T_SR(M) = max X_i + RTT`.
//!
//! Appendix A's `P(X_i ≥ q) = P_drop^⌈(q − t_start(i)) / O⌉` depends on i only through how many
//! retransmissions still fit before q. Chunks with the same number are grouped, so the product over
//! M chunks is a product over rounds:
//!
//! `P(max X_i ≤ t) = Π_j (1 − P_drop^(j+1))^n_j`, `n_j` = chunks with `⌊(t − t_start(i)) / O⌋ = j`.
//!
//! Its cost does not depend on M. With `t = M T_INJ + u`, chunk `M − s` has had `u + s T_INJ` since
//! it was first sent.

use std::sync::Arc;

use crate::link::any_of;

/// Rounds with a smaller probability affect no significant digit.
const NEGLIGIBLE: f64 = 1e-18;
/// Nor a mean, below this.
const NEGLIGIBLE_MEAN: f64 = 1e-11;

/// Above this loss, rounds are grouped: there are hundreds of them, and only the end of the last
/// matters.
const MAX_ROUND_LOSS: f64 = 0.9;

/// Messages up to this size are evaluated step by step. For longer ones the staircase is
/// approximated by a slope where several retransmissions are in flight at a time, and also where a
/// chunk may take many of them: the error is less than half an injection time.
const MAX_EXACT_CHUNKS: f64 = 4096.0;
const MAX_EXACT_ROUNDS: u32 = 100;
const MAX_EXACT_STEPS: usize = 4;

/// Distribution of `max X_i` over the chunks of a message.
#[derive(Clone, Debug)]
pub(crate) struct Repeat {
    chunks: f64,
    inject_s: f64,
    /// After this many rounds nothing is missing.
    rounds: u32,
    rounds_of: Arc<Rounds>,
}

/// Retransmission of one chunk, round by round: the same for all messages on a link.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    /// O: the cost of a loss.
    overhead_s: f64,
    /// Mean of what grouping rounds leaves out.
    shift_s: f64,
    /// Probability that a chunk is missing after 0, 1, … transmissions.
    missing: Vec<f64>,
    /// `ln(1 − missing)`.
    ln_there: Vec<f64>,
}

impl Rounds {
    /// For chunks that are lost with probability `loss`, the first time in separate `events`, in
    /// messages of up to `chunks` chunks.
    pub(crate) fn new(chunks: u64, inject_s: f64, rto_s: f64, events: f64, loss: f64) -> Rounds {
        let mut overhead_s = rto_s + inject_s;
        let (mut shift_s, mut first, mut again) = (0.0, events, loss);
        if loss > MAX_ROUND_LOSS {
            let together = (libm::log(MAX_ROUND_LOSS) / libm::log(loss)).max(1.0).floor();
            shift_s = 0.5 * (together - 1.0) * overhead_s;
            overhead_s *= together;
            again = libm::pow(loss, together);
            first = again;
        }
        let mut missing = vec![1.0, first];
        let mut power = again;
        while chunks as f64 * missing[missing.len() - 1] > NEGLIGIBLE {
            power *= again;
            missing.push(power.min(first));
        }
        let ln_there = missing.iter().map(|p| libm::log1p(-p)).collect();
        Rounds { overhead_s, shift_s, missing, ln_there }
    }
}

impl Repeat {
    /// For `chunks` chunks, at most as many as the rounds were computed for.
    pub(crate) fn new(chunks: u64, inject_s: f64, rounds_of: Arc<Rounds>) -> Repeat {
        let chunks = chunks as f64;
        let needed = rounds_of.missing.partition_point(|p| chunks * p > NEGLIGIBLE);
        Repeat { chunks, inject_s, rounds: needed.saturating_sub(1) as u32, rounds_of }
    }

    /// How many chunks.
    pub(crate) fn chunks(&self) -> f64 {
        self.chunks
    }

    /// When the last chunk is first sent.
    pub(crate) fn least_s(&self) -> f64 {
        self.chunks * self.inject_s + self.rounds_of.shift_s
    }

    /// `ln P(Y ≤ sent)`.
    fn ln_there(&self, sent: u32) -> f64 {
        self.rounds_of.ln_there.get(sent as usize).copied().unwrap_or(0.0)
    }

    /// Chunks, the latest first, that have had less than `age_s` by `u`, `⌈(age − u) / T_INJ⌉`, or
    /// the same without rounding.
    fn younger(&self, age_s: f64, u_s: f64, whole: bool) -> f64 {
        let exact = (age_s - u_s) / self.inject_s;
        // Treat a whole number up to rounding errors as whole.
        let count = if whole { (exact - 1e-9 * exact.abs().max(1.0)).ceil() } else { exact };
        count.clamp(0.0, self.chunks)
    }

    /// `P(max X_i ≤ t)`.
    pub(crate) fn cdf(&self, t_s: f64) -> f64 {
        let u_s = t_s - self.least_s();
        if u_s < -1e-12 * t_s {
            return 0.0;
        }
        libm::exp(self.ln_cdf(u_s.max(0.0), true))
    }

    /// For whole chunks, or for the smooth line through the staircase.
    fn ln_cdf(&self, u_s: f64, whole: bool) -> f64 {
        let overhead_s = self.rounds_of.overhead_s;
        let mut fits = (u_s / overhead_s + 1e-9).floor();
        let mut sum = 0.0;
        let mut counted = 0.0;
        while counted < self.chunks && fits < f64::from(self.rounds) {
            let upto = self.younger((fits + 1.0) * overhead_s, u_s, whole);
            sum += (upto - counted) * self.ln_there(fits as u32 + 1);
            counted = upto;
            fits += 1.0;
        }
        sum
    }

    /// `E[max X_i] = ∫ P(max X_i > t) dt`: appendix A's sum, with the distribution's own step size.
    ///
    /// The distribution is a staircase in t. Between the times when a retransmission starts or
    /// ceases to matter, it rises by the same factor per injection time, so a stretch of any length
    /// is a geometric series.
    pub(crate) fn mean_s(&self) -> f64 {
        let span_s = self.chunks * self.inject_s;
        let mut edges = Vec::with_capacity(2 * self.rounds as usize + 1);
        edges.push(0.0);
        for round in 1..=self.rounds {
            let full = f64::from(round) * self.rounds_of.overhead_s;
            edges.push(full);
            if full > span_s {
                edges.push(full - span_s);
            }
        }
        edges.sort_by(f64::total_cmp);
        let mut missing = 0.0;
        // The smooth line is continuous: each slope starts where the previous one ends.
        let mut level = None;
        for edge in edges.windows(2) {
            if self.missing_after(edge[0]) < NEGLIGIBLE_MEAN {
                break;
            }
            let (area, end) = self.area(edge[0], edge[1], level);
            missing += edge[1] - edge[0] - area;
            level = end;
        }
        self.least_s() + missing
    }

    /// Upper bound of the expected number of chunks missing `u` after the last was first sent.
    fn missing_after(&self, u_s: f64) -> f64 {
        let sent = (u_s / self.rounds_of.overhead_s) as usize + 1;
        self.chunks * self.rounds_of.missing.get(sent).copied().unwrap_or(0.0)
    }

    /// `∫ P(max X_i ≤ t) dt` between two edges, and the level of the smooth line at the end if it
    /// is known.
    fn area(&self, from_s: f64, to_s: f64, level: Option<f64>) -> (f64, Option<f64>) {
        let overhead_s = self.rounds_of.overhead_s;
        let length_s = to_s - from_s;
        if length_s <= 1e-12 * overhead_s {
            return (length_s, level);
        }
        // Rounds that some chunks have had and some have not, at any time in between.
        let middle_s = from_s + 0.5 * length_s;
        let first = (middle_s / overhead_s).floor() as u32 + 1;
        let last = ((middle_s + self.chunks * self.inject_s) / overhead_s).floor();
        let last = (last.min(f64::from(self.rounds))) as u32;
        let steps = (last + 1).saturating_sub(first) as usize;
        let climb = if steps == 0 { 0.0 } else { self.ln_there(last + 1) - self.ln_there(first) };
        let long = self.chunks > MAX_EXACT_CHUNKS && steps > MAX_EXACT_STEPS;
        if long || self.rounds > MAX_EXACT_ROUNDS {
            let start = level.unwrap_or_else(|| self.ln_cdf(from_s, false));
            let rise = climb / self.inject_s * length_s;
            // The stairs are on average half a step below the line.
            return (exp_area(start - 0.5 * climb, rise, length_s), Some(start + rise));
        }
        (self.stairs(from_s, length_s, first..=last, climb), None)
    }

    /// The same, step by step, for the rounds that contribute.
    fn stairs(
        &self,
        from_s: f64,
        length_s: f64,
        rounds: std::ops::RangeInclusive<u32>,
        climb: f64,
    ) -> f64 {
        let start = self.ln_cdf(from_s, true);
        // Where within an injection time each round steps, and by which factor.
        let mut jumps: Vec<(f64, f64)> = rounds
            .map(|round| {
                let away_s = f64::from(round) * self.rounds_of.overhead_s - from_s;
                let phase = (away_s / self.inject_s).fract();
                let at_s = if phase < 1e-9 { 1.0 } else { phase } * self.inject_s;
                (at_s, libm::exp(self.ln_there(round + 1) - self.ln_there(round)))
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
        // 1 + f + f² + … for the factor f per injection time, summed from the top: a long rise
        // starts at a number too small to represent.
        let top = libm::exp(start + climb * whole);
        let series = if climb * whole < 1e-9 {
            libm::exp(start) * whole
        } else {
            top * -libm::expm1(-climb * whole) / libm::expm1(climb)
        };
        within(self.inject_s) * series + top * within(rest_s)
    }

    /// Retransmissions per data chunk: `P / (1 − P)`.
    pub(crate) fn repeated_share(loss: f64) -> f64 {
        loss / (1.0 - loss)
    }

    /// Probability that any chunk has to be retransmitted.
    pub(crate) fn any_repeated(&self) -> f64 {
        any_of(self.rounds_of.missing[1], self.chunks)
    }
}

/// `∫` of an exponential whose logarithm rises by `rise` over `length`.
fn exp_area(start: f64, rise: f64, length: f64) -> f64 {
    let mean = if rise.abs() < 1e-9 { 1.0 } else { -libm::expm1(-rise) / rise };
    libm::exp(start + rise) * length * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appendix A literally: the product over all chunks, integrated over the staircase's own
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
                    1.0 - libm::pow(p, (since / overhead + 1e-9).floor() + 1.0)
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

    fn law(chunks: u64, inject: f64, rto: f64, p: f64) -> Repeat {
        Repeat::new(chunks, inject, Arc::new(Rounds::new(chunks, inject, rto, p, p)))
    }

    #[test]
    fn the_law_is_appendix_a_to_the_last_digits() {
        // Injection below, near and far above the timeout, whole and broken ratios.
        for (chunks, inject, rto) in
            [(1, 1.0, 3.0), (7, 1.0, 30.0), (40, 1.0, 3.5), (100, 0.37, 7.1), (60, 1.0, 0.2)]
        {
            for p in [1e-6, 1e-3, 0.05, 0.4] {
                let law = law(chunks, inject, rto, p);
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
            let law = law(1, 1.0, 9.0, p);
            let mean = 1.0 + 10.0 * p / (1.0 - p);
            assert!((law.mean_s() / mean - 1.0).abs() < 0.01, "{p}: {} {mean}", law.mean_s());
        }
    }

    #[test]
    fn slopes_and_stairs_agree() {
        // Just above the step-by-step limit, with many retransmissions in flight at a time.
        for p in [1e-3, 0.1, 0.6] {
            let slopes = law(5000, 1.0, 99.3, p);
            let mut stairs = 0.0;
            let mut t = slopes.least_s();
            while slopes.cdf(t) < 1.0 - 1e-13 {
                stairs += 0.1 * (1.0 - slopes.cdf(t + 0.05));
                t += 0.1;
            }
            let mean = slopes.least_s() + stairs;
            assert!((slopes.mean_s() / mean - 1.0).abs() < 1e-4, "{p}: {} {mean}", slopes.mean_s());
        }
    }

    #[test]
    fn nothing_lost_takes_the_time_of_injection() {
        let law = law(2048, 1e-6, 75e-3, 0.0);
        assert_eq!(law.mean_s(), law.least_s());
        assert_eq!(law.cdf(law.least_s()), 1.0);
        assert_eq!(law.cdf(law.least_s() * 0.999), 0.0);
        assert_eq!(law.any_repeated(), 0.0);
    }
}
