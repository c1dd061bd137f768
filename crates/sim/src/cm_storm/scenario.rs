//! What a seed decides.

use bowline_link::{Faults, LinkConfig, Loss, Prob};

use crate::attack::Attacker;
use crate::rng::SimRng;

const STREAM: u64 = 0xc3;
/// Percentage of seeds with an attacker, where none is requested.
const FORGER_PERCENT: u64 = 25;

/// How the applications of a seed behave, in percent and nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Requests and replies that are rejected.
    pub reject: u64,
    /// Ends that are forgotten instead of answered.
    pub forget: u64,
    /// The longest that an application thinks.
    pub think_ns: u64,
    /// Established connections that are kept.
    pub stay: u64,
    /// The longest that the others are kept.
    pub hold_ns: u64,
}

/// A connect or a resolution.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    /// When.
    pub at_ns: u64,
    /// From which host.
    pub from: usize,
    /// To which.
    pub to: usize,
    /// A datagram service is resolved; otherwise a connection is asked for.
    pub sidr: bool,
}

/// A process that dies and comes back.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// When it dies.
    pub at_ns: u64,
    /// How long it is gone.
    pub gone_ns: u64,
    /// How long the new process takes until it listens.
    pub deaf_ns: u64,
    /// Its host.
    pub host: usize,
}

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct CmScenario {
    /// The seed it was drawn from.
    pub seed: u64,
    /// Hosts.
    pub hosts: usize,
    /// Every link.
    pub link: LinkConfig,
    /// The link's faults until it is healed.
    pub faults: Faults,
    /// When it is healed.
    pub heal_ns: u64,
    /// Exponent of the managers' response timeout.
    pub response_timeout: u8,
    /// Their retries.
    pub max_retries: u8,
    /// Places in every backlog.
    pub backlog: usize,
    /// Queue pairs of a host: few, so that their numbers recur.
    pub qpns: u64,
    /// How applications behave.
    pub manners: Manners,
    /// Connects and resolutions.
    pub tries: Vec<Try>,
    /// Processes that die.
    pub kills: Vec<Kill>,
    /// When an attacker forges a message.
    pub forgeries_ns: Vec<u64>,
}

impl CmScenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, attacker: Attacker) -> CmScenario {
        let rng = &mut SimRng::new(seed, STREAM);
        let hosts = rng.range(2, 4) as usize;
        let heal_ns = rng.range(1_000_000_000, 8_000_000_000);
        let forger = rng.percent(FORGER_PERCENT) || attacker == Attacker::Always;
        let forgeries = if forger { rng.range(20, 400) } else { 0 };
        CmScenario {
            seed,
            hosts,
            link: LinkConfig { delay_ns: rng.range(1_000, 4_000_000), ..LinkConfig::default() },
            faults: faults(rng),
            heal_ns,
            response_timeout: rng.range(12, 15) as u8,
            max_retries: rng.pick(&[1, 2, 4, 8, 15]),
            backlog: rng.pick(&[1, 2, 8, 64]),
            qpns: rng.pick(&[4, 16, 256]),
            manners: Manners {
                reject: rng.pick(&[0, 0, 10, 40]),
                forget: rng.pick(&[0, 0, 5, 30]),
                think_ns: rng.pick(&[1, 1_000_000, 100_000_000, 1_000_000_000]),
                stay: rng.pick(&[0, 30, 80]),
                hold_ns: rng.pick(&[1_000, 50_000_000, 2_000_000_000]),
            },
            tries: (0..rng.range(4, 60)).map(|_| a_try(rng, hosts, heal_ns)).collect(),
            kills: kills(rng, hosts, heal_ns),
            forgeries_ns: (0..forgeries).map(|_| rng.below(heal_ns)).collect(),
        }
    }
}

fn faults(rng: &mut SimRng) -> Faults {
    let mut percent = |choices: &[u64]| Prob::new(rng.pick(choices) as f64 / 100.0);
    let (loss, duplicate) = (percent(&[0, 2, 10, 30, 60]), percent(&[0, 5, 30]));
    let reorder = percent(&[0, 10, 50]);
    // Corruption counts as loss: the ICRC detects it before the manager sees the message.
    Faults {
        loss: Loss::Iid(loss),
        jitter_ns: rng.pick(&[0, 1_000_000, 50_000_000]),
        reorder,
        reorder_ns: rng.pick(&[1_000_000, 400_000_000]),
        duplicate,
        ..Faults::default()
    }
}

fn a_try(rng: &mut SimRng, hosts: usize, heal_ns: u64) -> Try {
    let from = rng.below(hosts as u64) as usize;
    let step = rng.range(1, hosts as u64 - 1) as usize;
    let to = (from + step) % hosts;
    Try { at_ns: rng.below(heal_ns), from, to, sidr: rng.percent(20) }
}

fn kills(rng: &mut SimRng, hosts: usize, heal_ns: u64) -> Vec<Kill> {
    let count = rng.pick(&[0, 0, 1, 2, 5]);
    let kill = |rng: &mut SimRng| Kill {
        at_ns: rng.below(heal_ns),
        gone_ns: rng.pick(&[1, 1_000_000, 1_000_000_000]),
        deaf_ns: rng.pick(&[1, 100_000_000]),
        host: rng.below(hosts as u64) as usize,
    };
    (0..count).map(|_| kill(rng)).collect()
}
