//! Completion times sampled at random, by simulating chunks rather than from the distributions: a
//! check on those, and the method where there is no closed form.
//!
//! Losses are drawn as gaps between them, so a sample costs as much as there are losses, and for
//! the last chunk's arrival even less: see [`Repeats::draw`]. For a message with more than a
//! hundred losses, their aggregate is drawn instead: failed submessages, or go-backs.

use rand::Rng;
use rand_distr::{Binomial, Distribution, Gamma, Poisson};

use crate::error::PlanError;
use crate::link::Loss;
use crate::scheme::{Coding, Erasure, Scheme};
use crate::transfer::Transfer;

/// Samples completion times of one transfer under one scheme.
#[derive(Clone, Debug)]
pub struct Sampler {
    transfer: Transfer,
    scheme: Scheme,
    /// Probability that a submessage fails, for messages with too many losses to draw each.
    group_fails: f64,
}

/// Most losses per message that are drawn one by one; beyond that, failed submessages are drawn.
const MAX_LOSSES: f64 = 100.0;

impl Sampler {
    /// For independent losses only: bursts cannot be sampled.
    pub fn new(transfer: &Transfer, scheme: &Scheme) -> Result<Sampler, PlanError> {
        scheme.check()?;
        if let Loss::Bursts(_) = transfer.link().loss {
            let why = "sampling does not support bursts; give a loss rate".to_owned();
            return Err(PlanError::new("loss", why, "independent losses"));
        }
        let group_fails = match scheme {
            Scheme::Erasure(code) => {
                let loss = Loss::Chunk(transfer.chunk_loss());
                crate::erasure::failure(code.coding, code.k, code.m, &loss, 1)
            }
            _ => 0.0,
        };
        Ok(Sampler { transfer: *transfer, scheme: *scheme, group_fails })
    }

    /// One message's completion time in seconds.
    pub fn draw(&self, rng: &mut impl Rng) -> f64 {
        let transfer = &self.transfer;
        let rtt_s = transfer.link().rtt_s;
        match &self.scheme {
            Scheme::SelectiveRepeat { rto_rtts } => {
                self.repeats(transfer.chunks(), rto_rtts * rtt_s).draw(rng) + rtt_s
            }
            Scheme::Erasure(code) => self.coded(code, rng),
            Scheme::GoBackN => self.go_back(rng),
            Scheme::Lowar { r, c } => self.lowar(*r, *c, rng),
            Scheme::BestEffort => transfer.ideal_s(),
        }
    }

    /// `n` samples, sorted.
    pub fn sorted(&self, n: usize, rng: &mut impl Rng) -> Vec<f64> {
        let mut times: Vec<f64> = (0..n).map(|_| self.draw(rng)).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    fn repeats(&self, chunks: u64, rto_s: f64) -> Repeats {
        let inject_s = self.transfer.inject_s();
        Repeats { chunks, inject_s, overhead_s: rto_s + inject_s, loss: self.transfer.chunk_loss() }
    }

    fn coded(&self, code: &Erasure, rng: &mut impl Rng) -> f64 {
        let (k, m) = (u64::from(code.k), u64::from(code.m));
        let chunks = self.transfer.chunks();
        let sent = chunks + (chunks * m).div_ceil(k);
        let rtt_s = self.transfer.link().rtt_s;
        let clean_s = sent as f64 * self.transfer.inject_s() + rtt_s;
        let failed = if sent as f64 * self.transfer.chunk_loss() <= MAX_LOSSES {
            self.failed_by_chunks(code, rng)
        } else {
            // A message that long has so many submessages that a shorter last one does not matter.
            let law = Binomial::new(chunks / k, self.group_fails).expect("a probability");
            law.sample(rng) * k
        };
        if failed == 0 {
            return clean_s;
        }
        let repeats = self.repeats(failed, code.rto_rtts * rtt_s).draw(rng);
        clean_s + code.beta * rtt_s + repeats + rtt_s
    }

    /// Draws lost chunks of data and parity, and returns the data chunks of submessages that cannot
    /// be recovered.
    fn failed_by_chunks(&self, code: &Erasure, rng: &mut impl Rng) -> u64 {
        let (k, m) = (u64::from(code.k), u64::from(code.m));
        let chunks = self.transfer.chunks();
        let sent = chunks + (chunks * m).div_ceil(k);
        let mut failed = 0;
        let mut lost = Vec::new();
        let mut at = gap(self.transfer.chunk_loss(), rng);
        while at < sent {
            // The losses of one submessage, whose parity follows its data.
            let group = at / (k + m);
            let end = ((group + 1) * (k + m)).min(sent);
            let data = (chunks - group * k).min(k);
            let parity = (end - group * (k + m)) - data;
            lost.clear();
            while at < end {
                lost.push(at - group * (k + m));
                at += 1 + gap(self.transfer.chunk_loss(), rng);
            }
            if !recovers(code.coding, &lost, data, parity) {
                failed += data;
            }
        }
        failed
    }

    fn go_back(&self, rng: &mut impl Rng) -> f64 {
        let (packets, packet_s) = (self.transfer.packets(), self.transfer.packet_s());
        let rtt_s = self.transfer.link().rtt_s;
        let loss = self.transfer.link().loss.of_packet(self.transfer.packets_per_chunk());
        let losses = losses_before(packets - 1, loss, rng);
        let last = losses_before(1, loss, rng);
        packets as f64 * packet_s
            + rtt_s
            + losses * (rtt_s + packet_s)
            + last * (3.0 * rtt_s + packet_s)
    }

    fn lowar(&self, r: u32, c: u32, rng: &mut impl Rng) -> f64 {
        let (packets, packet_s) = (self.transfer.packets(), self.transfer.packet_s());
        let rtt_s = self.transfer.link().rtt_s;
        let loss = self.transfer.link().loss.of_packet(self.transfer.packets_per_chunk());
        let blocks = packets.div_ceil(r.into());
        let failed = crate::erasure::failure(Coding::Xor, r, c, &Loss::Chunk(loss), 1);
        let block_s = f64::from(r + c) * packet_s;
        (packets + blocks * u64::from(c)) as f64 * packet_s
            + rtt_s
            + losses_before(blocks, failed, rng) * (rtt_s + block_s)
    }
}

/// Whether a submessage can be recovered without the lost chunks; parity is numbered after data.
fn recovers(coding: Coding, lost: &[u64], data: u64, parity: u64) -> bool {
    match coding {
        Coding::Mds => lost.len() as u64 <= parity,
        Coding::Xor => {
            let group = |chunk: u64| if chunk < data { chunk % parity } else { chunk - data };
            let mut seen: Vec<u64> = lost.iter().map(|chunk| group(*chunk)).collect();
            seen.sort_unstable();
            seen.windows(2).all(|pair| pair[0] != pair[1])
        }
    }
}

/// Selective repeat of some chunks.
struct Repeats {
    chunks: u64,
    inject_s: f64,
    overhead_s: f64,
    loss: f64,
}

impl Repeats {
    /// `max X_i`, from the last chunk backwards. An earlier chunk matters only if it is lost more
    /// often than all later ones, so the next one that matters is a geometric gap away, with the
    /// probability of so many losses: a handful of draws, whatever the number of chunks.
    fn draw(&self, rng: &mut impl Rng) -> f64 {
        let mut latest = self.chunks as f64 * self.inject_s;
        let mut most_lost = 0.0;
        let mut back = gap(self.loss, rng);
        while back < self.chunks {
            let again = losses_of_one(self.loss, rng);
            most_lost += 1.0 + again;
            let sent_s = (self.chunks - back) as f64 * self.inject_s;
            latest = latest.max(sent_s + most_lost * self.overhead_s);
            let more = libm::pow(self.loss, most_lost + 1.0);
            back = back.saturating_add(1).saturating_add(gap(more, rng));
        }
        latest
    }
}

/// Uniform in (0, 1].
fn uniform(rng: &mut impl Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// How many consecutive events do not happen, each of probability `p`, before one does.
fn gap(p: f64, rng: &mut impl Rng) -> u64 {
    if p <= 0.0 {
        return u64::MAX;
    }
    // The cast saturates.
    (libm::log(uniform(rng)) / libm::log1p(-p)) as u64
}

/// How many times in a row something is lost, with probability `p` each time.
fn losses_of_one(p: f64, rng: &mut impl Rng) -> f64 {
    if p <= 0.0 { 0.0 } else { (libm::log(uniform(rng)) / libm::log(p)).floor() }
}

/// Losses before the n-th success: by gaps, or if there are many as a Poisson number whose mean is
/// drawn from a gamma distribution.
fn losses_before(n: u64, p: f64, rng: &mut impl Rng) -> f64 {
    if n == 0 || p <= 0.0 {
        return 0.0;
    }
    if n as f64 * p > MAX_LOSSES {
        let mean = Gamma::new(n as f64, p / (1.0 - p)).expect("positive").sample(rng);
        return Poisson::new(mean).map_or(0.0, |law| law.sample(rng));
    }
    let (mut losses, mut arrived) = (0.0, gap(p, rng));
    while arrived < n {
        losses += 1.0;
        arrived = arrived.saturating_add(gap(p, rng));
    }
    losses
}
