//! The links of the demonstration.

use std::time::Duration;

use bowline::{LinkProfile, ParseLinkError};

/// Rate of the long links.
const RATE_BPS: u64 = 1_000_000_000;

/// A link between the two NICs, the same in both directions.
pub(super) struct Link {
    /// The name in the table.
    pub(super) name: &'static str,
    /// Round-trip time without queueing; zero for an unimpaired link.
    pub(super) rtt: Duration,
    /// Share of packets that are lost.
    pub(super) loss: f64,
    /// Whether the sending NIC is killed halfway.
    pub(super) killed: bool,
}

/// All links, from the easiest to the hardest.
pub(super) const LINKS: [Link; 5] = [
    link("loopback, unimpaired", 0, 0.0),
    link("1 Gbit/s, 10 ms", 10, 0.0),
    link("1 Gbit/s, 40 ms, 0.01 % loss", 40, 0.0001),
    link("1 Gbit/s, 40 ms, 0.1 % loss", 40, 0.001),
    Link { killed: true, ..link("1 Gbit/s, 10 ms, NIC killed", 10, 0.0) },
];

const fn link(name: &'static str, rtt_ms: u64, loss: f64) -> Link {
    Link { name, rtt: Duration::from_millis(rtt_ms), loss, killed: false }
}

impl Link {
    /// The impairment of one direction; `None` on the clean link.
    pub(super) fn profile(&self, seed: u64) -> Result<Option<LinkProfile>, ParseLinkError> {
        if self.rtt.is_zero() {
            return Ok(None);
        }
        let delay_us = self.rtt.as_micros() / 2;
        // The queue holds a whole window, so that it adds no losses of its own. It does not hold
        // two: a window that is retransmitted too early must not delay the responses to the first
        // one.
        let queue = self.window_bytes() / 4 * 5;
        let loss = self.loss * 100.0;
        let text = format!(
            "loss={loss}%,delay={delay_us}us,rate={RATE_BPS}bps,queue={queue}B,seed={seed}"
        );
        text.parse().map(Some)
    }

    /// Bytes that a sender should keep in flight: twice the bandwidth-delay product.
    pub(super) fn window_bytes(&self) -> u32 {
        let on_the_way = RATE_BPS as f64 / 8.0 * self.rtt.as_secs_f64();
        (2.0 * on_the_way).max(f64::from(1 << 20)) as u32
    }

    /// The verbs code of a retransmission timeout that neither a full queue nor a busy machine
    /// triggers: without losses nothing should be retransmitted.
    pub(super) fn timeout_code(&self) -> u8 {
        // A full window takes two round trips to drain, and a thread may be scheduled 100 ms late.
        let least_us = (10 * self.rtt).max(Duration::from_millis(250)).as_micros() as f64;
        (1..=31).find(|code| 4.096 * 2f64.powi(*code) >= least_us).unwrap_or(31) as u8
    }

    /// The link's rate, if it is limited.
    pub(super) fn rate_gbps(&self) -> Option<f64> {
        (!self.rtt.is_zero()).then_some(RATE_BPS as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use bowline_link::{Fate, Link as Cable, Time};

    use super::*;
    use crate::demo::load::Load;

    /// Which of the first packets are lost in one direction.
    fn lost(seed: u64, direction: u64) -> Vec<u64> {
        let profile = LINKS[3].profile(Load::new(seed).link_seed(direction)).unwrap().unwrap();
        let mut cable = Cable::from_profile(&profile, 0);
        let at = |n: u64| Time::from_nanos(n * 40_000);
        (0..20_000).filter(|n| matches!(cable.admit(at(*n), 4096, false), Fate::Lost)).collect()
    }

    #[test]
    fn the_same_seed_loses_the_same_packets() {
        let first = lost(7, 0);
        assert!((5..60).contains(&first.len()), "0.1 % of 20,000: {first:?}");
        assert_eq!(first, lost(7, 0));
        assert_ne!(first, lost(8, 0));
        assert_ne!(first, lost(7, 1), "the ways there and back lose packets of their own");
    }
}
