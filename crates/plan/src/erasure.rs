//! Erasure coding with selective repeat as fallback (section 4.2.3, appendix B).

use crate::link::{Loss, any_of};
use crate::numeric::{binomial_above, ln_choose};
use crate::repeat::Repeat;
use crate::scheme::{Coding, Erasure};
use crate::transfer::Transfer;

/// Probability that a submessage of `k` data and `m` parity chunks cannot be recovered:
/// `1 − P_EC(k, m)` of appendix B.
///
/// MDS: more than m of the k + m chunks are lost. XOR: two or more of a modulo group, `k / m` data
/// chunks and their parity; if the data does not divide evenly, group sizes differ by one.
pub(crate) fn failure(coding: Coding, k: u32, m: u32, loss: &Loss, packets: u64) -> f64 {
    let chunk_loss = loss.of_chunk(packets);
    match (coding, loss) {
        (Coding::Mds, Loss::Bursts(model)) => model.more_lost(m, k + m, packets),
        (Coding::Mds, _) => binomial_above(m, k + m, chunk_loss),
        (Coding::Xor, loss) => {
            if let Loss::Bursts(model) = loss
                && let Some(failed) = model.group_lost_two(k, m, packets)
            {
                return failed;
            }
            let larger = k % m;
            let fails = |data: u32| binomial_above(1, data + 1, chunk_loss);
            let many = any_of(fails(k / m + 1), larger.into());
            let few = any_of(fails(k / m), (m - larger).into());
            many + (1.0 - many) * few
        }
    }
}

/// Distribution of a coded message's completion time.
#[derive(Clone, Debug)]
pub(crate) struct Coded {
    /// When data and parity have been sent and acknowledged.
    clean_s: f64,
    /// When the sender knows which submessages failed.
    fallback_s: f64,
    rtt_s: f64,
    /// `P_fallback = 1 − P_EC^L`.
    fallback: f64,
    /// Failed submessages, as chunks to retransmit, with their probabilities.
    repeats: Vec<(f64, Repeat)>,
    /// Section 4.2.3's own expectation.
    paper_mean_s: f64,
    /// Mean number of chunks to retransmit in the fallback.
    repeated_chunks: f64,
}

/// Failure counts that are evaluated one by one; larger ones are grouped in ranges with one
/// representative, which is then close to all of them.
const MAX_SINGLE: u64 = 64;
const MAX_RANGES: u64 = 80;

impl Coded {
    pub(crate) fn new(transfer: &Transfer, code: &Erasure) -> Coded {
        let (k, m) = (u64::from(code.k), u64::from(code.m));
        let chunks = transfer.chunks();
        let inject_s = transfer.inject_s();
        let rtt_s = transfer.link().rtt_s;
        let groups = Groups::new(transfer, code);
        let sent_s = (chunks + (chunks * m).div_ceil(k)) as f64 * inject_s;
        let rounds = transfer.rounds(code.rto_rtts * rtt_s);
        let repeat = |chunks: u64| Repeat::new(chunks, inject_s, rounds.clone());
        let mut law = Coded {
            clean_s: sent_s + rtt_s,
            fallback_s: sent_s + (1.0 + code.beta) * rtt_s,
            rtt_s,
            fallback: groups.any_failed(),
            repeats: Vec::new(),
            paper_mean_s: 0.0,
            repeated_chunks: groups.failures() * k as f64,
        };
        law.repeats = groups.failed().into_iter().map(|(p, n)| (p, repeat(n))).collect();
        // The expected number of chunks is rarely an integer; no message has less than one.
        let expected = law.repeated_chunks.ceil() as u64;
        let sr_s = if expected == 0 { 0.0 } else { repeat(expected).mean_s() };
        law.paper_mean_s = sent_s + law.fallback * (1.0 + code.beta) * rtt_s + sr_s + rtt_s;
        law
    }

    /// Earliest completion.
    pub(crate) fn least_s(&self) -> f64 {
        self.clean_s
    }

    /// `E[T_EC(M)]`: data and parity, then the cost of the fallback, weighted by the number of
    /// failed submessages. The paper's sum of three terms puts the mean number of failures into
    /// `T_SR` instead, see [`Coded::paper_mean_s`].
    pub(crate) fn mean_s(&self) -> f64 {
        let added_s = self.fallback_s - self.clean_s + self.rtt_s;
        let anchors = self.anchors();
        let mean_s = |chunks: f64| {
            let right = anchors.partition_point(|(at, _)| *at < chunks);
            match (right.checked_sub(1).map(|left| anchors[left]), anchors.get(right)) {
                (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (chunks - x0) / (x1 - x0),
                (Some((_, only)), None) => only,
                (None, first) => first.map_or(0.0, |(_, mean_s)| *mean_s),
            }
        };
        let each = self.repeats.iter().map(|(p, law)| p * (added_s + mean_s(law.chunks())));
        self.clean_s + each.sum::<f64>()
    }

    /// Means by chunks to retransmit, ascending: dense for few failures, ever sparser for more,
    /// because there the mean changes slowly and linear interpolation suffices.
    fn anchors(&self) -> Vec<(f64, f64)> {
        let mut anchors = Vec::new();
        let mut next = 0;
        for (i, (_, law)) in self.repeats.iter().enumerate() {
            if i == next || i + 1 == self.repeats.len() {
                anchors.push((law.chunks(), law.mean_s()));
                next = i + 1 + i / 4;
            }
        }
        anchors
    }

    /// `(M + ⌈M/R⌉) T_INJ + P_fallback (RTT + β RTT) + E[T_SR(E[failures] · k)]`, as printed.
    pub(crate) fn paper_mean_s(&self) -> f64 {
        self.paper_mean_s
    }

    pub(crate) fn cdf(&self, t_s: f64) -> f64 {
        if t_s < self.clean_s * (1.0 - 1e-12) {
            return 0.0;
        }
        let since_s = t_s - self.fallback_s - self.rtt_s;
        let failed: f64 = self.repeats.iter().map(|(p, law)| p * law.cdf(since_s)).sum();
        1.0 - self.fallback + failed
    }

    pub(crate) fn fallback(&self) -> f64 {
        self.fallback
    }

    pub(crate) fn repeated_chunks(&self) -> f64 {
        self.repeated_chunks
    }
}

/// The submessages of a message: L of k chunks, and perhaps a shorter one with proportional parity.
struct Groups {
    full: u64,
    /// Chunks of a full one.
    k: u64,
    full_fails: f64,
    short_chunks: u64,
    short_fails: f64,
}

impl Groups {
    fn new(transfer: &Transfer, code: &Erasure) -> Groups {
        let (k, m) = (u64::from(code.k), u64::from(code.m));
        let fails = |k: u64, m: u64| {
            let loss = &transfer.link().loss;
            failure(code.coding, k as u32, m as u32, loss, transfer.packets_per_chunk())
        };
        let (full, short_chunks) = (transfer.chunks() / k, transfer.chunks() % k);
        let full_fails = if full > 0 { fails(k, m) } else { 0.0 };
        let short_fails = if short_chunks > 0 {
            fails(short_chunks, (short_chunks * m).div_ceil(k))
        } else {
            0.0
        };
        Groups { full, k, full_fails, short_chunks, short_fails }
    }

    /// `E[failures] = L (1 − P_EC)`, in full submessages.
    fn failures(&self) -> f64 {
        let short = self.short_chunks as f64 / self.k as f64;
        self.full as f64 * self.full_fails + short * self.short_fails
    }

    /// `P_fallback = 1 − P_EC^L`.
    fn any_failed(&self) -> f64 {
        let full = any_of(self.full_fails, self.full as f64);
        full + (1.0 - full) * self.short_fails
    }

    /// Chunks to retransmit and their probability, for all outcomes with failures.
    fn failed(&self) -> Vec<(f64, u64)> {
        let mut outcomes = Vec::new();
        for (count, p) in failures(self.full, self.full_fails) {
            let chunks = (count * self.k as f64).round() as u64;
            outcomes.push((p * (1.0 - self.short_fails), chunks));
            outcomes.push((p * self.short_fails, chunks + self.short_chunks));
        }
        outcomes.retain(|(p, chunks)| *p > 1e-15 && *chunks > 0);
        outcomes.sort_by_key(|(_, chunks)| *chunks);
        outcomes.dedup_by(|(p, chunks), kept| {
            let same = *chunks == kept.1;
            kept.0 += if same { *p } else { 0.0 };
            same
        });
        outcomes
    }
}

/// How many of `n` fail, each with probability `p`: the relevant part of the binomial distribution,
/// with neighbouring counts grouped where there are many.
fn failures(n: u64, p: f64) -> Vec<(f64, f64)> {
    let nf = n as f64;
    let (mean, deviation) = (nf * p, (nf * p * (1.0 - p)).sqrt());
    // Wide enough for a normal tail of 1e-18 and for a Poisson one.
    let low = (mean - 9.0 * deviation - 1.0).max(0.0).floor() as u64;
    let high = ((mean + 9.0 * deviation + 20.0).ceil() as u64).min(n);
    let pmf = |count: u64| {
        let c = count as f64;
        if p <= 0.0 || p >= 1.0 {
            return if (p <= 0.0) == (count == 0) { 1.0 } else { 0.0 };
        }
        libm::exp(ln_choose(nf, c) + c * libm::log(p) + (nf - c) * libm::log1p(-p))
    };
    let counts = high - low + 1;
    let width = if counts <= MAX_SINGLE { 1 } else { counts.div_ceil(MAX_RANGES) };
    let mut outcomes = Vec::new();
    let mut from = low;
    // No failure is an outcome of its own.
    if from == 0 {
        outcomes.push((0.0, libm::exp(nf * libm::log1p(-p))));
        from = 1;
    }
    while from <= high {
        let to = (from + width).min(high + 1);
        let (middle, weight) = if width <= 8 {
            let weight: f64 = (from..to).map(pmf).sum();
            let moment: f64 = (from..to).map(|count| count as f64 * pmf(count)).sum();
            (if weight > 0.0 { moment / weight } else { from as f64 }, weight)
        } else {
            // Over wide ranges the distribution is smooth: Simpson's rule.
            let (a, b) = (from, to - 1);
            let inner = pmf(a + (b - a) / 2);
            (0.5 * (a + b) as f64, (to - from) as f64 * (pmf(a) + 4.0 * inner + pmf(b)) / 6.0)
        };
        outcomes.push((middle, weight));
        from = to;
    }
    let total: f64 = outcomes.iter().map(|(_, weight)| weight).sum();
    outcomes.iter_mut().for_each(|(_, weight)| *weight /= total);
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_probabilities_are_those_of_appendix_b() {
        let p: f64 = 0.03;
        let q = 1.0 - p;
        // MDS EC(4, 2), all terms of the sum.
        let fine = q.powi(6) + 6.0 * p * q.powi(5) + 15.0 * p * p * q.powi(4);
        let ours = failure(Coding::Mds, 4, 2, &Loss::Chunk(p), 16);
        assert!((ours - (1.0 - fine)).abs() < 1e-14);
        // XOR EC(32, 8), n = 5.
        let fine = (q.powi(5) + 5.0 * p * q.powi(4)).powi(8);
        let ours = failure(Coding::Xor, 32, 8, &Loss::Chunk(p), 16);
        assert!((ours - (1.0 - fine)).abs() < 1e-14);
        // Groups of 3 and 2 data chunks.
        let group = |n: i32| q.powi(n) + f64::from(n) * p * q.powi(n - 1);
        let ours = failure(Coding::Xor, 5, 2, &Loss::Chunk(p), 16);
        assert!((ours - (1.0 - group(4) * group(3))).abs() < 1e-14);
    }

    #[test]
    fn counts_of_failures_are_a_law_with_the_right_moments() {
        for (n, p) in
            [(1, 0.3), (64, 1e-9), (64, 0.02), (1_000_000, 1e-6), (1_000_000, 0.3), (64, 0.999)]
        {
            let law = failures(n, p);
            let total: f64 = law.iter().map(|(_, w)| w).sum();
            let mean: f64 = law.iter().map(|(c, w)| c * w).sum();
            assert!((total - 1.0).abs() < 1e-12, "{n} {p}");
            assert!((mean / (n as f64 * p) - 1.0).abs() < 1e-3, "{n} {p}: {mean}");
            assert!(law.len() as u64 <= MAX_RANGES + 2);
        }
    }
}
