//! What a seed decides about an attacker.

use crate::rng::SimRng;

/// The attacker draws from its own stream, so that everything else about a seed stays the same.
const STREAM: u64 = 0xa77;
/// Percentage of seeds with an attacker, where none is requested.
const SHARE_PERCENT: u64 = 20;
/// Most forgeries of a seed: a few times fewer than its own packets.
const MAX_BURSTS: u64 = 60;

/// Which seeds have an attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attacker {
    /// Those whose draw says so.
    #[default]
    Drawn,
    /// All.
    Always,
}

/// An attacker.
#[derive(Clone, Debug)]
pub struct AttackPlan {
    /// The host at whose port its packets enter the network.
    pub host: usize,
    /// It has learned the Q_Keys of datagram QPs, which all their peers know.
    pub knows_qkeys: bool,
    /// It numbers its IPv4 packets as Bowline does; otherwise at random.
    pub own_ids: bool,
    /// When it sends how much.
    pub bursts: Vec<Burst>,
}

/// Forgeries sent at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// When.
    pub at_ns: u64,
    /// How many.
    pub forgeries: u32,
}

impl AttackPlan {
    /// The attacker of a seed, if it has one: before `heal_ns`, at one of so many hosts.
    pub(crate) fn draw(
        seed: u64,
        attacker: Attacker,
        hosts: usize,
        heal_ns: u64,
    ) -> Option<AttackPlan> {
        let rng = &mut SimRng::new(seed, STREAM);
        let drawn = rng.percent(SHARE_PERCENT);
        if attacker == Attacker::Drawn && !drawn {
            return None;
        }
        // At the start, throughout, or now and then.
        let span_ns = rng.pick(&[heal_ns, heal_ns, heal_ns / 16]).max(1);
        let mut bursts: Vec<Burst> = (0..rng.range(1, MAX_BURSTS))
            .map(|_| Burst { at_ns: rng.below(span_ns), forgeries: rng.pick(&[1, 1, 2, 8, 40]) })
            .collect();
        bursts.sort_unstable_by_key(|burst| burst.at_ns);
        Some(AttackPlan {
            host: rng.below(hosts as u64) as usize,
            knows_qkeys: rng.percent(50),
            own_ids: rng.percent(50),
            bursts,
        })
    }

    /// The random generator of its guesses.
    pub(crate) fn guesses(seed: u64) -> SimRng {
        SimRng::new(seed, STREAM + 1)
    }
}
