//! A link whose loss changes in steps: how long a connection that chooses its schemes takes,
//! compared with each scheme alone and with the best of them in hindsight.

use bowline_link::LinkConfig;
use bowline_nic::Mtu;
use bowline_sdr::{Decision, ReliableConfig, SdrConfig};

use super::session::{Losses, Session};

/// A link, and messages over it.
#[derive(Clone, Debug)]
pub struct StepsConfig {
    /// Seed of the losses.
    pub seed: u64,
    /// Bits per second.
    pub bandwidth_bps: u64,
    /// Round trip.
    pub rtt_ns: u64,
    /// Payload of a packet.
    pub mtu: Mtu,
    /// Packets of a chunk.
    pub packets_per_chunk: u32,
    /// Bytes of each message.
    pub bytes: u64,
    /// Probability that a packet is lost, phase by phase.
    pub packet_losses: Vec<f64>,
    /// Messages in each phase, one after the other.
    pub messages: u32,
}

impl StepsConfig {
    fn reliable(&self) -> ReliableConfig {
        let sdr = SdrConfig {
            mtu: self.mtu,
            chunk_bytes: self.mtu.bytes() * self.packets_per_chunk,
            rate_bps: Some(self.bandwidth_bps),
            lateness_ns: Some(self.rtt_ns),
            ..SdrConfig::default()
        };
        ReliableConfig { sdr, max_write: self.bytes, ..ReliableConfig::default() }
    }
}

/// The result of one scheme.
#[derive(Clone, Debug)]
pub struct StepsRun {
    /// The scheme.
    pub scheme: String,
    /// Seconds of all messages of each phase.
    pub phases_s: Vec<f64>,
    /// What was chosen, if the scheme is adaptive.
    pub decisions: Vec<Decision>,
}

/// Runs all phases over one connection with one scheme; `None` if a message failed.
///
/// # Panics
/// If the parameters are refused.
pub fn steps(config: &StepsConfig, scheme: &str) -> Option<StepsRun> {
    let cable = LinkConfig {
        // The pacer sets the rate: headers must not affect the result.
        rate_bps: Some(2 * config.bandwidth_bps),
        delay_ns: config.rtt_ns / 2,
        queue_bytes: 256 << 20,
        ecn: None,
    };
    let reliable = config.reliable();
    let index = reliable.scheme(scheme).ok()?;
    let mut session = Session::connect(config.seed, cable, &reliable);
    let mut phases_s = Vec::new();
    for packet_loss in &config.packet_losses {
        session.set_losses(Losses::both(*packet_loss));
        let mut phase_ns = 0;
        for _ in 0..config.messages {
            phase_ns += session.write(config.bytes, index)?;
        }
        phases_s.push(phase_ns as f64 / 1e9);
    }
    let decisions = session.decisions().cloned().collect();
    Some(StepsRun { scheme: scheme.to_owned(), phases_s, decisions })
}

/// Seconds of all phases, each with the scheme that was best in it.
pub fn hindsight_s(fixed: &[StepsRun]) -> f64 {
    let phases = fixed.iter().map(|run| run.phases_s.len()).min().unwrap_or(0);
    let best = |phase: usize| fixed.iter().map(|r| r.phases_s[phase]).fold(f64::INFINITY, f64::min);
    (0..phases).map(best).sum()
}

#[cfg(test)]
mod tests {
    use super::super::SCHEMES;
    use super::*;

    #[test]
    fn a_connection_that_chooses_is_near_the_best_in_hindsight() {
        for packets_per_chunk in [1, 16] {
            let config = StepsConfig {
                seed: 1,
                bandwidth_bps: 10_000_000_000,
                rtt_ns: 30_000_000,
                mtu: Mtu::B1024,
                packets_per_chunk,
                bytes: 1 << 20,
                packet_losses: vec![1e-6, 1e-3, 2e-2, 1e-4],
                messages: 25,
            };
            let fixed: Vec<StepsRun> =
                SCHEMES.iter().map(|scheme| steps(&config, scheme).unwrap()).collect();
            let auto = steps(&config, "auto").unwrap();
            let ratio = auto.phases_s.iter().sum::<f64>() / hindsight_s(&fixed);
            assert!(ratio < 1.15, "{packets_per_chunk} packets a chunk: {ratio}\n{auto:?}");
        }
    }
}
