//! Go-back-N, plain and over LoWAR's interleaved XOR. Not in the paper's model, but in its terms.

use crate::erasure::failure;
use crate::link::Loss;
use crate::negative_binomial::NegativeBinomial;
use crate::scheme::Coding;
use crate::transfer::Transfer;

/// Distribution for a message in which every loss retransmits everything after it.
///
/// `T = (packets) T_pkt + K (RTT + T_unit) + K_last (RTO + T_unit) + RTT`: what follows a loss is
/// dropped, so a loss costs the round trip until the sender goes back to it. K losses occur before
/// all units but the last have arrived, each with the same probability; nothing follows the last
/// unit, so its own K_last losses are detected by timeout.
#[derive(Clone, Debug)]
pub(crate) struct GoBack {
    least_s: f64,
    losses: NegativeBinomial,
    cost_s: f64,
    last_loss: f64,
    last_cost_s: f64,
    /// Packets in flight after a loss, relative to all packets.
    wasted_share: f64,
}

/// Round trips until a sender without acknowledgements goes back, as for selective repeat.
const TIMEOUT_RTTS: f64 = 3.0;

impl GoBack {
    /// Plain go-back-N, packet by packet.
    pub(crate) fn plain(transfer: &Transfer) -> GoBack {
        let (packets, packet_s) = (transfer.packets() as f64, transfer.packet_s());
        let rtt_s = transfer.link().rtt_s;
        let loss = transfer.link().loss.of_packet(transfer.packets_per_chunk());
        // One go-back covers a burst: it is much shorter than a round trip.
        let loss = transfer.link().loss.events(loss, 1);
        let losses = NegativeBinomial::new(packets - 1.0, loss);
        let cost_s = rtt_s + packet_s;
        let wasted_share = (losses.mean() + loss / (1.0 - loss)) * (rtt_s / packet_s) / packets;
        GoBack {
            least_s: packets * packet_s + rtt_s,
            losses,
            cost_s,
            last_loss: loss,
            last_cost_s: TIMEOUT_RTTS * rtt_s + packet_s,
            wasted_share,
        }
    }

    /// Over LoWAR(r, c): blocks of r packets in c lanes with one XOR packet each, which recovers
    /// one lost packet per lane. A block with two losses in a lane goes back, and takes its block's
    /// time.
    pub(crate) fn lowar(transfer: &Transfer, r: u32, c: u32) -> GoBack {
        let (packets, packet_s) = (transfer.packets() as f64, transfer.packet_s());
        let rtt_s = transfer.link().rtt_s;
        let loss = transfer.link().loss.of_packet(transfer.packets_per_chunk());
        let blocks = (packets / f64::from(r)).ceil();
        let block = f64::from(r + c) * packet_s;
        let failed = match &transfer.link().loss {
            bursts @ Loss::Bursts(_) => failure(Coding::Xor, r, c, bursts, 1),
            _ => failure(Coding::Xor, r, c, &Loss::Chunk(loss), 1),
        };
        let losses = NegativeBinomial::new(blocks, failed);
        let repairs = blocks * f64::from(c);
        let cost_s = rtt_s + block;
        let wasted_share = (repairs + losses.mean() * cost_s / packet_s) / packets;
        GoBack {
            least_s: (packets + repairs) * packet_s + rtt_s,
            losses,
            cost_s,
            last_loss: 0.0,
            last_cost_s: 0.0,
            wasted_share,
        }
    }

    pub(crate) fn least_s(&self) -> f64 {
        self.least_s
    }

    pub(crate) fn mean_s(&self) -> f64 {
        let last = self.last_loss / (1.0 - self.last_loss);
        self.least_s + self.losses.mean() * self.cost_s + last * self.last_cost_s
    }

    pub(crate) fn cdf(&self, t_s: f64) -> f64 {
        let mut extra_s = t_s - self.least_s;
        let mut weight = 1.0 - self.last_loss;
        let mut sum = 0.0;
        while extra_s >= -1e-12 * t_s && weight > 1e-13 {
            sum += weight * self.losses.cdf((extra_s / self.cost_s + 1e-9).floor());
            weight *= self.last_loss;
            extra_s -= self.last_cost_s;
        }
        sum
    }

    /// Bytes sent besides the message's own, relative to those.
    pub(crate) fn overhead(&self) -> f64 {
        self.wasted_share
    }
}
