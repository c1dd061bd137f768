//! Estimates packet loss from the repairs that messages needed.
//!
//! A loss rate of one in a million shows only in a long memory, and a long memory is slow to notice
//! change. So everything remembered counts, until the most recent part, over spans from one message
//! to many, can hardly have come from the same link as what came before: then the earlier part is
//! forgotten.

use std::collections::VecDeque;

/// Packets after which the past has little weight.
const MEMORY_PACKETS: f64 = 4e6;
/// Messages are merged until they have this many packets: the granularity of the memory.
const GRAIN_PACKETS: f64 = 128.0;
/// Grains that are searched for a change.
const RECENT: usize = 32;
/// An event less likely than this is not attributed to chance.
const UNLIKELY: f64 = 3e-5;
/// The same in standard deviations, where counts are large.
const DEVIATIONS: f64 = 4.0;
/// Prior before anything has been sent: one loss in 10⁵ packets, weak enough for the first losses
/// to override.
const PRIOR: Counts = Counts { packets: 100.0, lost: 1e-3 };

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: f64,
    lost: f64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.packets += other.packets;
        self.lost += other.lost;
    }

    fn rate(&self) -> f64 {
        (self.lost / self.packets).clamp(0.0, 1.0)
    }
}

/// Counts losses.
#[derive(Debug)]
pub(super) struct LossMeter {
    packets_per_chunk: f64,
    /// Counts that have left `recent`, with exponential decay.
    past: Counts,
    /// Newest at the back.
    recent: VecDeque<Counts>,
    /// Chunks that the peer has reported to have reconstructed from parity.
    peer_recovered: u64,
}

impl LossMeter {
    pub(super) fn new(packets_per_chunk: u32) -> LossMeter {
        LossMeter {
            packets_per_chunk: packets_per_chunk.into(),
            past: Counts::default(),
            recent: VecDeque::new(),
            peer_recovered: 0,
        }
    }

    /// The peer has reconstructed this many chunks from parity since the connection began; returns
    /// how many of them are new.
    pub(super) fn on_recovered(&mut self, total: u64) -> u64 {
        let news = total.saturating_sub(self.peer_recovered);
        self.peer_recovered += news;
        news
    }

    /// Of `sent` chunks, `lost` were retransmitted or reconstructed.
    pub(super) fn on_chunks(&mut self, sent: u64, lost: u64) {
        if sent == 0 {
            return;
        }
        // A chunk is lost with any of its packets.
        let share = (lost as f64 / sent as f64).min(0.99);
        let packets = sent as f64 * self.packets_per_chunk;
        let of_packets = -((-share).ln_1p() / self.packets_per_chunk).exp_m1();
        self.record(Counts { packets, lost: packets * of_packets });
    }

    fn record(&mut self, counts: Counts) {
        match self.recent.back_mut().filter(|last| last.packets < GRAIN_PACKETS) {
            Some(last) => last.add(counts),
            None => self.recent.push_back(counts),
        }
        if self.recent.len() > RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            let fade = (1.0 - oldest.packets / MEMORY_PACKETS).max(0.0);
            self.past = Counts { packets: self.past.packets * fade, lost: self.past.lost * fade };
            self.past.add(oldest);
        }
        self.forget();
    }

    /// Forgets what came before a change.
    fn forget(&mut self) {
        let mut latest = 1;
        while latest <= self.recent.len() {
            let split = self.recent.len() - latest;
            let mut before = PRIOR;
            before.add(self.past);
            self.recent.range(..split).for_each(|counts| before.add(*counts));
            let mut after = Counts::default();
            self.recent.range(split..).for_each(|counts| after.add(*counts));
            if differ(before, after) {
                self.past = Counts::default();
                self.recent.drain(..split);
                return;
            }
            latest *= 2;
        }
    }

    /// Probability that a packet is lost.
    pub(super) fn packet_loss(&self) -> f64 {
        let mut all = PRIOR;
        all.add(self.past);
        self.recent.iter().for_each(|counts| all.add(*counts));
        all.rate()
    }
}

/// Whether `after` is unlikely on a link that produced `before`: the further losses of a link of
/// unknown rate, given its past ones, have a negative binomial distribution.
fn differ(before: Counts, after: Counts) -> bool {
    let (shape, odds) = (before.lost, after.packets / before.packets);
    let mean = shape * odds;
    let deviation = (mean * (1.0 + odds)).sqrt();
    if mean > 50.0 || after.lost > 200.0 {
        return (after.lost - mean).abs() > DEVIATIONS * deviation;
    }
    let lost = after.lost.round();
    let share = odds / (1.0 + odds);
    let mut term = (-shape * odds.ln_1p()).exp();
    let mut below = 0.0;
    let mut count = 0.0;
    while count < lost {
        below += term;
        term *= (shape + count) / (count + 1.0) * share;
        count += 1.0;
    }
    let (at_least, at_most) = (1.0 - below, below + term);
    // One loss is bad luck; two are a sign.
    (lost >= 2.0 && lost > mean && at_least < UNLIKELY) || (lost < mean && at_most < UNLIKELY)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Sends messages of `chunks` chunks over a link that loses chunks at rate `loss`.
    fn send(meter: &mut LossMeter, rng: &mut ChaCha8Rng, messages: u32, chunks: u64, loss: f64) {
        for _ in 0..messages {
            let lost = (0..chunks).filter(|_| rng.random_bool(loss)).count() as u64;
            meter.on_chunks(chunks, lost);
        }
    }

    #[test]
    fn steps_are_followed_within_some_messages_and_small_rates_come_out() {
        for seed in 0..50 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut meter = LossMeter::new(1);
            let mut check = |messages, chunks, loss: f64, tolerance: f64| {
                send(&mut meter, &mut rng, messages, chunks, loss);
                let found = meter.packet_loss();
                let factor = (found / loss).max(loss / found);
                assert!(factor < tolerance, "seed {seed}: {found:e} for {loss:e}");
            };
            check(1000, 2048, 1e-5, 6.0);
            check(8, 2048, 1e-3, 6.0);
            check(3, 2048, 2e-2, 2.0);
            check(8, 2048, 1e-3, 6.0);
            check(500, 2048, 1e-5, 6.0);
        }
    }

    #[test]
    fn a_link_that_does_not_change_is_remembered() {
        let mut forgot = 0;
        for seed in 0..50 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut meter = LossMeter::new(16);
            send(&mut meter, &mut rng, 400, 128, 1e-2);
            forgot += u32::from(meter.past.packets < 300.0 * 128.0 * 16.0);
        }
        assert!(forgot <= 10, "{forgot} of 50 forgot their past");
    }

    #[test]
    fn one_loss_is_bad_luck() {
        let mut meter = LossMeter::new(1);
        meter.on_chunks(100_000, 0);
        meter.on_chunks(128, 1);
        assert!(meter.packet_loss() < 2e-5);
        meter.on_chunks(128, 3);
        assert!(meter.packet_loss() > 5e-3);
    }

    #[test]
    fn nothing_a_peer_says_breaks_it() {
        let mut meter = LossMeter::new(16);
        assert_eq!(meter.on_recovered(5), 5);
        assert_eq!(meter.on_recovered(3), 0);
        let huge = meter.on_recovered(u64::MAX);
        meter.on_chunks(1, huge);
        meter.on_chunks(0, 9);
        assert!((0.0..=1.0).contains(&meter.packet_loss()));
    }
}
