//! When flows start, and between whom.

use bowline_nic::Time;

use super::sizes::Sizes;
use crate::rng::SimRng;
use crate::world::HostId;

/// Stream of draws about background traffic.
const STREAM: u64 = 0x666c_6f77;

/// The parameters of the flows.
#[derive(Clone, Debug, PartialEq)]
pub struct PoissonConfig {
    /// Hosts that send and receive; at least two.
    pub hosts: usize,
    /// Rate of each host's cable.
    pub rate_bps: u64,
    /// Share of it that flows take on average.
    pub load: f64,
    /// How large they are.
    pub sizes: Sizes,
    /// When the first may start.
    pub start: Time,
    /// When the last may start.
    pub end: Time,
}

/// A flow to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// When it starts.
    pub at: Time,
    /// Who sends.
    pub from: HostId,
    /// Who receives; another host.
    pub to: HostId,
    /// How much.
    pub bytes: u64,
}

/// Flows in order of start: a Poisson process, with uniformly random sources and destinations.
#[derive(Clone, Debug)]
pub struct PoissonFlows {
    config: PoissonConfig,
    rng: SimRng,
    mean_gap_ns: f64,
    /// Time of the last flow, in nanoseconds. Gaps may be shorter than one.
    now_ns: f64,
}

impl PoissonFlows {
    /// The flows of a seed.
    ///
    /// # Panics
    /// If there are fewer than two hosts, or the load or the rate is not above 0.
    pub fn new(seed: u64, config: PoissonConfig) -> PoissonFlows {
        assert!(config.hosts >= 2, "a flow needs two hosts");
        let bits_per_ns = config.load * config.rate_bps as f64 * config.hosts as f64 / 1e9;
        assert!(bits_per_ns > 0.0, "flows need a load and a rate");
        PoissonFlows {
            rng: SimRng::new(seed, STREAM),
            mean_gap_ns: config.sizes.mean() * 8.0 / bits_per_ns,
            now_ns: config.start.as_nanos() as f64,
            config,
        }
    }
}

impl PoissonFlows {
    /// What flows these are.
    pub fn config(&self) -> &PoissonConfig {
        &self.config
    }
}

impl Iterator for PoissonFlows {
    type Item = Flow;

    fn next(&mut self) -> Option<Flow> {
        // The logarithm of 1 - x, which is never 0. `libm` gives the same digits on every machine.
        self.now_ns -= libm::log(1.0 - self.rng.unit()) * self.mean_gap_ns;
        let at = Time::from_nanos(self.now_ns as u64);
        if at >= self.config.end {
            return None;
        }
        let hosts = self.config.hosts as u64;
        let from = self.rng.below(hosts);
        let to = (from + self.rng.range(1, hosts - 1)) % hosts;
        let bytes = self.config.sizes.draw(&mut self.rng);
        Some(Flow { at, from: HostId(from as usize), to: HostId(to as usize), bytes })
    }
}
