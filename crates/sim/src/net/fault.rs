//! What a link does to packets besides carrying them.

use crate::packet::Packet;
use crate::rng::{Prob, SimRng};

/// Faults of a link. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Which packets vanish.
    pub loss: Loss,
    /// A packet arrives twice, the copy up to `reorder_ns` later.
    pub duplicate: Prob,
    /// A packet is held back, up to `reorder_ns`, and overtaken by those behind it.
    pub reorder: Prob,
    /// Longest time a packet is held back. Bounded, because 24-bit sequence numbers can tell old
    /// packets from new ones only within half a round of the circle.
    pub reorder_ns: u64,
    /// Bytes of a packet are changed.
    pub corrupt: Prob,
    /// How they are changed.
    pub corruption: Corruption,
    /// Delay that varies by up to this much from packet to packet, order kept.
    pub jitter_ns: u64,
}

/// Which packets vanish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with the same probability.
    Iid(Prob),
    /// In bursts.
    GilbertElliott(GilbertElliott),
    /// In bursts of one length.
    Bursts(Bursts),
}

/// Bad spells of a fixed number of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// A spell begins with a packet, if none is on.
    pub begin: Prob,
    /// Packets that it lasts.
    pub packets: u32,
    /// Loss during a spell.
    pub loss: Prob,
}

/// The two-state loss model: a good and a bad state, each with its own loss rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilbertElliott {
    /// From good to bad, per packet.
    pub to_bad: Prob,
    /// From bad to good, per packet: the mean burst is its inverse.
    pub to_good: Prob,
    /// Loss in the good state.
    pub loss_good: Prob,
    /// Loss in the bad state.
    pub loss_bad: Prob,
}

impl GilbertElliott {
    /// Bursts of `mean_burst` packets, all lost, that make up `rate` of all packets.
    pub fn bursts(rate: f64, mean_burst: f64) -> GilbertElliott {
        let to_good = 1.0 / mean_burst;
        // In balance as many packets enter the bad state as leave it.
        let to_bad = to_good * rate / (1.0 - rate);
        GilbertElliott {
            to_bad: Prob::new(to_bad),
            to_good: Prob::new(to_good),
            loss_good: Prob::NEVER,
            loss_bad: Prob::ALWAYS,
        }
    }
}

/// How a corrupted packet differs from what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Corruption {
    /// One flipped bit: no ICRC check that solves for the IP identification misses it, as it may two.
    #[default]
    OneBit,
    /// Any number of bits, or a packet cut short. Only for receivers that know the IP
    /// identification: a check of 16 bits would miss one such packet in 65,536.
    Anything,
}

/// Decides about loss, packet by packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossState {
    bad: bool,
    /// Packets left of a spell.
    left: u32,
}

impl LossState {
    pub(super) fn loses(&mut self, loss: &Loss, rng: &mut SimRng) -> bool {
        match loss {
            Loss::None => false,
            Loss::Iid(p) => rng.chance(*p),
            Loss::GilbertElliott(model) => {
                let flips = if self.bad { model.to_good } else { model.to_bad };
                self.bad ^= rng.chance(flips);
                rng.chance(if self.bad { model.loss_bad } else { model.loss_good })
            }
            Loss::Bursts(model) => {
                if self.left == 0 && rng.chance(model.begin) {
                    self.left = model.packets;
                }
                let bad = self.left > 0;
                self.left = self.left.saturating_sub(1);
                bad && rng.chance(model.loss)
            }
        }
    }
}

/// Changes some bytes of a packet.
pub(super) fn corrupt(packet: &mut Packet, how: Corruption, rng: &mut SimRng) {
    let before = packet.digest;
    match how {
        Corruption::OneBit => flip_bits(packet, 1, rng),
        Corruption::Anything if rng.percent(20) => {
            let keep = rng.below(packet.bytes.len() as u64) as usize;
            packet.bytes.truncate(keep);
        }
        Corruption::Anything => {
            let bits = if rng.percent(50) { 1 } else { rng.range(2, 40) };
            flip_bits(packet, bits, rng);
        }
    }
    packet.seal();
    packet.digest ^= before.rotate_left(1);
}

fn flip_bits(packet: &mut Packet, bits: u64, rng: &mut SimRng) {
    // Headers are a small part of a packet's bits and the most of its meaning.
    let reach = if rng.percent(50) { packet.bytes.len().min(28) } else { packet.bytes.len() };
    for _ in 0..bits {
        let bit = rng.below(reach as u64 * 8);
        if let Some(byte) = packet.bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}
