//! Messages in the planner's terms (number of chunks, time per chunk, round trip), carried by the
//! real protocol.
//!
//! A completion time depends on ratios: chunks per message, injection time over round trip, chunk
//! loss. So chunks are as small as packets can be and the rate is lowered by as much, which costs a
//! hundredth of the work; and where a round trip is so short that the minimum of the schemes'
//! timers would matter, time is stretched.

use bowline_link::LinkConfig;
use bowline_nic::Mtu;
use bowline_sdr::{ImmLayout, ReliableConfig, SdrConfig};
use bowline_wire::{Bth, ICRC_LEN, ImmDt, Reth};

use super::session::{Losses, Session};

/// Payload of a packet.
const MTU: Mtu = Mtu::B256;
/// Headers of a single-packet WRITE with immediate.
const HEADERS: u32 = (Bth::LEN + Reth::LEN + ImmDt::LEN + ICRC_LEN) as u32;
/// The shortest round trip at which no timer's minimum matters.
const LEAST_RTT_S: f64 = 0.064;

/// A message on a link.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledCase {
    /// Seed of the losses.
    pub seed: u64,
    /// Chunks of the message.
    pub chunks: u32,
    /// Packets of a chunk.
    pub packets_per_chunk: u32,
    /// Time to inject a chunk.
    pub inject_s: f64,
    /// Round trip.
    pub rtt_s: f64,
    /// Probability that a packet is lost towards the receiver. Acknowledgements are not lost.
    pub packet_loss: f64,
    /// The scheme.
    pub scheme: String,
    /// Data chunks of a group.
    pub k: u32,
    /// Parity chunks of a group.
    pub m: u32,
}

/// Messages of one case, one after the other.
pub struct Scaled {
    session: Session,
    bytes: u64,
    chunks: u64,
    scheme: usize,
    stretch: f64,
    messages: u64,
}

impl Scaled {
    /// Connects the two ends; `None` if the scheme does not exist, or the message has too many
    /// chunks to number.
    pub fn new(case: &ScaledCase) -> Option<Scaled> {
        let stretch = (LEAST_RTT_S / case.rtt_s).max(1.0);
        let chunk_bytes = MTU.bytes() * case.packets_per_chunk;
        // The pacer counts headers, which the model does not.
        let wire_bytes = (MTU.bytes() + HEADERS) * case.packets_per_chunk;
        let rate = f64::from(wire_bytes) * 8.0 / (case.inject_s * stretch);
        let rtt_ns = (case.rtt_s * stretch * 1e9) as u64;
        let bytes = u64::from(case.chunks) * u64::from(chunk_bytes);
        let sdr = SdrConfig {
            mtu: MTU,
            chunk_bytes,
            layout: ImmLayout::new(16, 16, 0)?,
            generations: 1,
            rate_bps: Some(rate as u64),
            lateness_ns: Some(rtt_ns),
            ..SdrConfig::default()
        };
        let (k, m) = (case.k, case.m);
        let reliable = ReliableConfig { sdr, max_write: bytes, k, m, ..ReliableConfig::default() };
        reliable.check().ok()?;
        let cable = LinkConfig {
            // The pacer sets the rate, not the cable.
            rate_bps: Some((rate * 100.0) as u64),
            delay_ns: rtt_ns / 2,
            queue_bytes: 256 << 20,
            ecn: None,
        };
        let scheme = reliable.scheme(&case.scheme).ok()?;
        let mut session = Session::connect(case.seed, cable, &reliable);
        session.set_losses(Losses { forward: case.packet_loss, back: 0.0 });
        let chunks = case.chunks.into();
        Some(Scaled { session, bytes, chunks, scheme, stretch, messages: 0 })
    }

    /// One more message: its completion time in seconds, or `None` if it failed.
    pub fn next_s(&mut self) -> Option<f64> {
        let time_ns = self.session.write(self.bytes, self.scheme)?;
        self.messages += 1;
        Some(time_ns as f64 / 1e9 / self.stretch)
    }

    /// Share of chunks that were lost so far: retransmitted, or recovered from others.
    pub fn chunk_loss(&self) -> f64 {
        let resent = self.session.sender().chunks_resent;
        let lost = resent + self.session.receiver().chunks_recovered;
        lost as f64 / (self.messages * self.chunks + resent).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_loss_a_message_takes_what_it_must_on_any_scale() {
        for (rtt_s, packets_per_chunk) in [(25e-3, 1), (1e-3, 1), (0.3, 4)] {
            for scheme in ["sr-nack", "sr-rto"] {
                let case = ScaledCase {
                    seed: 0,
                    chunks: 200,
                    packets_per_chunk,
                    inject_s: rtt_s / 100.0,
                    rtt_s,
                    packet_loss: 0.0,
                    scheme: scheme.to_owned(),
                    k: 32,
                    m: 8,
                };
                let mut messages = Scaled::new(&case).unwrap();
                for _ in 0..3 {
                    let slowdown = messages.next_s().unwrap() / (3.0 * rtt_s);
                    assert!((0.98..1.02).contains(&slowdown), "{case:?}: {slowdown}");
                }
                assert_eq!(messages.chunk_loss(), 0.0);
            }
        }
    }
}
