//! Completion time of one reliable message over a long lossy cable.

use bowline_link::LinkConfig;
use bowline_sdr::{ReliableConfig, ReliableStats, SdrConfig};

use super::session::{Losses, Session};

/// What is measured.
#[derive(Clone, Debug)]
pub struct CompletionConfig {
    /// Seed of the losses.
    pub seed: u64,
    /// The cable; its delay is half the round trip.
    pub cable: LinkConfig,
    /// Probability that a packet is lost, in either direction, control messages included.
    pub packet_loss: f64,
    /// Bytes of the message.
    pub bytes: u64,
    /// The connection.
    pub reliable: ReliableConfig,
    /// Index of the message's scheme.
    pub scheme: usize,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletionTime {
    /// From the write until the sender knows that all of it has arrived.
    pub time_ns: u64,
    /// The sender's statistics.
    pub sender: ReliableStats,
    /// The receiver's statistics.
    pub receiver: ReliableStats,
}

impl CompletionConfig {
    /// A message over a cable of that rate and round trip, paced to the rate.
    pub fn new(bytes: u64, bits_per_sec: u64, rtt_ns: u64) -> CompletionConfig {
        let cable = LinkConfig {
            rate_bps: Some(bits_per_sec),
            delay_ns: rtt_ns / 2,
            queue_bytes: 256 << 20,
            ecn: None,
        };
        let sdr = SdrConfig { rate_bps: Some(bits_per_sec), ..SdrConfig::default() };
        let reliable = ReliableConfig { sdr, max_write: bytes, ..ReliableConfig::default() };
        CompletionConfig { seed: 0, cable, packet_loss: 0.0, bytes, reliable, scheme: 0 }
    }

    /// Loses chunks with this probability, by losing their packets.
    pub fn set_chunk_loss(&mut self, chunk_loss: f64) {
        let packets = self.reliable.sdr.chunk_bytes / self.reliable.sdr.mtu.bytes();
        self.packet_loss = 1.0 - (1.0 - chunk_loss).powf(1.0 / f64::from(packets));
    }

    /// The least time for a message: its time on the wire and a round trip.
    pub fn ideal_ns(&self) -> f64 {
        let wire_ns = self.cable.transmit_ns(self.bytes) as f64;
        wire_ns + 2.0 * self.cable.delay_ns as f64
    }
}

/// Writes one message whose receive is posted already; `None` if the write failed.
pub fn completion(config: &CompletionConfig) -> Option<CompletionTime> {
    let mut session = Session::connect(config.seed, config.cable, &config.reliable);
    session.set_losses(Losses::both(config.packet_loss));
    let time_ns = session.write(config.bytes, config.scheme)?;
    Some(CompletionTime { time_ns, sender: session.sender(), receiver: session.receiver() })
}
