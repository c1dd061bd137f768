//! The link and its losses.

use crate::bursts::GilbertElliott;
use crate::error::PlanError;

/// A link between two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bits per second.
    pub bandwidth_bps: f64,
    /// Round trip in seconds.
    pub rtt_s: f64,
    /// Its losses.
    pub loss: Loss,
}

/// Loss model of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Each packet with this probability.
    Packet(f64),
    /// Each chunk with this probability: the paper's P_drop. It does not depend on the chunk's
    /// size, as in the paper's figures.
    Chunk(f64),
    /// Packets in bursts.
    Bursts(GilbertElliott),
}

/// With a higher chunk loss there is nothing to plan.
pub(crate) const MAX_CHUNK_LOSS: f64 = 1.0 - 1e-6;

/// The paper's signal speed: 3750 km are a round trip of 25 ms. Light in fibre takes half as long
/// again.
const METRES_PER_SECOND: f64 = 3e8;

/// The round trip over a distance, by the paper's convention (figure 3: 3750 km = 25 ms).
pub fn rtt_of_distance_s(kilometres: f64) -> f64 {
    2e3 * kilometres / METRES_PER_SECOND
}

impl Link {
    /// Checks that the numbers are valid for a link.
    pub fn check(&self) -> Result<(), PlanError> {
        if !(self.bandwidth_bps.is_finite() && self.bandwidth_bps > 0.0) {
            let why = format!("{} bit/s; give more than 0", self.bandwidth_bps);
            return Err(PlanError::new("bandwidth", why, "400e9"));
        }
        if !(self.rtt_s.is_finite() && self.rtt_s >= 0.0) {
            let why = format!("{} s; give 0 or more", self.rtt_s);
            return Err(PlanError::new("rtt", why, "0.025"));
        }
        self.loss.check()
    }
}

impl Loss {
    fn check(&self) -> Result<(), PlanError> {
        match self {
            Loss::Packet(p) if !(0.0..1.0).contains(p) => {
                let why = format!("{p}; give a probability from 0 to below 1");
                Err(PlanError::new("loss", why, "1e-5"))
            }
            Loss::Chunk(p) if !(0.0..1.0).contains(p) => {
                let why = format!("{p}; give a probability from 0 to below 1");
                Err(PlanError::new("chunk loss", why, "1e-4"))
            }
            Loss::Bursts(model) => model.check(),
            _ => Ok(()),
        }
    }

    /// Probability that a chunk of `packets` packets is lost: one lost packet loses it (section
    /// 5.4.2).
    ///
    /// `P_chunk = 1 − (1 − P_drop)^N`
    pub fn of_chunk(&self, packets: u64) -> f64 {
        match self {
            Loss::Packet(p) => any_of(*p, packets as f64),
            Loss::Chunk(p) => *p,
            Loss::Bursts(model) => model.any_lost(packets),
        }
    }

    /// Probability that a packet is lost, where a chunk has `packets` of them: the inverse of
    /// [`Loss::of_chunk`].
    pub fn of_packet(&self, packets: u64) -> f64 {
        match self {
            Loss::Packet(p) => *p,
            Loss::Chunk(p) => any_of(*p, 1.0 / packets as f64),
            Loss::Bursts(model) => model.any_lost(1),
        }
    }

    /// Rate of separate loss events: per unit of `packets` packets, the probability that a new
    /// burst of losses begins with it. For independent losses, the loss rate itself.
    pub(crate) fn events(&self, unit_loss: f64, packets: u64) -> f64 {
        match self {
            Loss::Packet(_) | Loss::Chunk(_) => unit_loss,
            Loss::Bursts(model) => model.events(packets).min(unit_loss),
        }
    }
}

/// `1 − (1 − p)^n` without cancellation.
pub(crate) fn any_of(p: f64, n: f64) -> f64 {
    if n == 0.0 { 0.0 } else { -libm::expm1(n * libm::log1p(-p)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_loss_is_that_of_figure_15() {
        // Theoretical chunk drop probability for 1 to 64 packets at 1e-5.
        for (packets, expected) in [(1, 1.0e-5), (2, 2.0e-5), (16, 1.6e-4), (64, 6.4e-4)] {
            let chunk = Loss::Packet(1e-5).of_chunk(packets);
            assert!((chunk / expected - 1.0).abs() < 1e-3, "{packets}: {chunk}");
            let packet = Loss::Chunk(chunk).of_packet(packets);
            assert!((packet / 1e-5 - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn distance_is_the_papers() {
        assert!((rtt_of_distance_s(3750.0) - 25e-3).abs() < 1e-15);
    }
}
