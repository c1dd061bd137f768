//! Running one seed.

use std::io::{self, Write};

use bowline_seal::Rollover;

use crate::attack::Attacker;
use crate::rng::SimRng;
use crate::sdr_storm::SdrScenario;
use crate::storm::{Role, Scenario, SeedReport};
use crate::xp_storm::XpScenario;
use crate::{sdr_storm, storm, xp_storm};

/// Stream of draws about keys.
const STREAM: u64 = 0x5ea2;
const MILLISECOND: u64 = 1_000_000;

/// Runs the storm of a seed. There always is an attacker.
pub fn run_seed(seed: u64, _attacker: Attacker) -> SeedReport {
    run(seed, None).expect("without a log nothing is written")
}

/// Runs the storm of a seed and writes a readable log of its events.
///
/// # Errors
/// If the log cannot be written.
pub fn run_seed_traced(
    seed: u64,
    _attacker: Attacker,
    log: Box<dyn Write>,
) -> io::Result<SeedReport> {
    run(seed, Some(log))
}

fn run(seed: u64, log: Option<Box<dyn Write>>) -> io::Result<SeedReport> {
    let rng = &mut SimRng::new(seed, STREAM);
    let attacker = Attacker::Always;
    match rng.below(100) {
        0..50 => run_storm(rng, Scenario::draw(seed, attacker), log),
        50..75 => run_storm(rng, Scenario::draw_failover(seed, attacker), log),
        75..88 => {
            let mut scenario = XpScenario::draw(seed, attacker);
            scenario.sealed = Some(seldom(rng));
            xp_storm::run_scenario(&scenario, log)
        }
        _ => {
            let mut scenario = SdrScenario::draw(seed, attacker);
            scenario.sealed = Some(seldom(rng));
            sdr_storm::run_scenario(&scenario, log)
        }
    }
}

fn run_storm(
    rng: &mut SimRng,
    mut scenario: Scenario,
    log: Option<Box<dyn Write>>,
) -> io::Result<SeedReport> {
    scenario.sealed = Some(Rollover {
        packets: rng.pick(&[150, 400, 1_500]),
        bytes: rng.pick(&[100_000, 1 << 30]),
        age_ns: rng.pick(&[5, 20, 1_000]) * MILLISECOND,
        keep_ns: rng.pick(&[1, 20]) * MILLISECOND,
    });
    // A correctly guessed PSN is useless here, so hostages get the same guarantees as others.
    for conn in scenario.conns.iter_mut().filter(|conn| conn.role == Role::Hostage) {
        conn.role = Role::Normal;
        conn.ends.iter_mut().for_each(|end| end.rnr_retry = 7);
    }
    storm::run_scenario(&scenario, log)
}

/// Rekeying for connections that keep sending while nothing arrives: a sender must not be too many
/// keys ahead.
fn seldom(rng: &mut SimRng) -> Rollover {
    Rollover {
        packets: rng.pick(&[500, 2_000]),
        bytes: rng.pick(&[1 << 20, 1 << 30]),
        age_ns: rng.pick(&[500, 5_000]) * MILLISECOND,
        keep_ns: 50 * MILLISECOND,
    }
}
